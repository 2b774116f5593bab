"""The file expected.json of a folder, with the elements that tf_data_test.py compares with the program's.

A tensor is [dtype, shape, values]. Text is uint8, and its values are the rows as strings without the zeros at their ends.
Numbers that are not finite are strings. pipelines_program.cc prints elements in the same way.
"""
import json
import math

import numpy as np

TEXT_BYTES = 24  # Size of all columns of text.


def number(value):
    return value if isinstance(value, (int, bool)) or math.isfinite(value) else str(value)


def tensor(value):
    """Returns a numpy array, a number, a string of bytes or an array of these in the form of expected.json."""
    array = np.asarray(value)
    if array.dtype.kind in "OS":
        texts = array.astype(object)
        return ["uint8", [*texts.shape, TEXT_BYTES], [text.decode("latin-1") for text in texts.reshape(-1).tolist()]]
    return [str(array.dtype), list(array.shape), [number(n) for n in array.reshape(-1).tolist()]]


def write_expected(folder, writer, pipelines):
    """Writes the elements of each pipeline, which are tuples or single values."""
    for pipeline in pipelines.values():
        pipeline["elements"] = [[tensor(value) for value in (element if isinstance(element, tuple) else (element,))]
                                for element in pipeline["elements"]]
    parts = []
    for name, pipeline in pipelines.items():
        facts = "".join(f"{json.dumps(key)}: {json.dumps(value)}, " for key, value in pipeline.items() if key != "elements")
        elements = ",\n".join(json.dumps(element, separators=(",", ":")) for element in pipeline["elements"])
        parts.append(f'{json.dumps(name)}: {{{facts}"elements": [\n{elements}]}}')
    text = ",\n".join(parts)
    (folder / "expected.json").write_text(f'{{"writer": {json.dumps(writer)}, "pipelines": {{\n{text}}}}}\n')
