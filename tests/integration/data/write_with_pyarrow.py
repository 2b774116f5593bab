#!/usr/bin/env python3
"""Writes Parquet files with pyarrow, and the rows that pyarrow reads from them, for tf_data_test.py.

usage: write_with_pyarrow.py FOLDER [RECORDS]

Runs with a Python that has pyarrow and numpy. RECORDS, by default 6, is the length of the first file. The same arguments
give the same files. FOLDER/expected.json has the elements of each pipeline. pipelines_program.cc builds the same pipelines,
by the same names.
"""
import random
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from expected import write_expected

FOLDER = Path(sys.argv[1])
RECORDS = int(sys.argv[2]) if len(sys.argv) > 2 else 6
LENGTHS = {"a": RECORDS, "b": RECORDS // 2, "empty": 0, "c": 2 * RECORDS - 1}
WORDS = ["", "blue", "red", "grün", "a longer one", None]
DTYPES = {"id": np.int64, "score": np.float64, "small": np.int32, "flag": np.bool_, "maybe": np.int64, "rate": np.float32,
          "word": object, "plain": object, "tags": np.int64, "vector": np.float32, "fixed": np.float32}
MISSING = {"maybe": -1, "rate": 0.5, "word": "", "plain": ""}  # Values that stand in for nulls.

choice = random.Random(5)


def schema():
    return pa.schema([("id", pa.int64()), ("score", pa.float64()), ("small", pa.int32()), ("flag", pa.bool_()),
                      ("maybe", pa.int64()), ("rate", pa.float32()), ("word", pa.string()), ("plain", pa.string()),
                      ("tags", pa.list_(pa.int64())), ("vector", pa.list_(pa.float32())),
                      ("fixed", pa.list_(pa.float32(), 3))])


def row(number):
    maybe = choice.random() < 0.6
    return {"id": number, "score": choice.gauss(0, 1e6), "small": choice.randrange(-2**31, 2**31), "flag": choice.random() < 0.5,
            "maybe": choice.randrange(9) if maybe else None, "rate": choice.random() if maybe else None,
            "word": choice.choice(WORDS), "plain": choice.choice(WORDS),
            "tags": [choice.randrange(-2**63, 2**63) for _ in range(choice.randrange(4))],
            "vector": [choice.random() for _ in range(3)], "fixed": [choice.random() for _ in range(3)]}


def write_files():
    count = 0
    for name, length in LENGTHS.items():
        rows = [row(count + i) for i in range(length)]
        count += length
        pq.write_table(pa.Table.from_pylist(rows, schema()), str(FOLDER / f"{name}.parquet"),
                       row_group_size=max(RECORDS // 2, 1), data_page_size=64, use_dictionary=["word", "small", "maybe"],
                       compression={"a": "snappy", "b": "none", "c": "zstd", "empty": "snappy"}[name],
                       data_page_version="2.0" if name == "b" else "1.0", write_page_checksum=name == "a")
    numbers = pa.table({"x": pa.array(np.arange(RECORDS, dtype=np.float32) / 7), "name": ["n"] * RECORDS,
                        "y": pa.array(np.arange(RECORDS, dtype=np.int64) * 3)})
    pq.write_table(numbers, str(FOLDER / "numbers.parquet"))
    pq.write_table(pa.table({"id": pa.array(np.arange(600, dtype=np.int64))}), str(FOLDER / "ids.parquet"), row_group_size=70)


def cell(value, column):
    if value is None:
        value = MISSING[column]
    return value.encode() if DTYPES[column] is object else np.asarray(value, DTYPES[column])


def rows(*names, columns=("id", "score")):
    """Returns the rows of files, read by pyarrow."""
    found = []
    for name in names:
        for read in pq.read_table(str(FOLDER / f"{name}.parquet"), columns=list(columns)).to_pylist():
            found.append(tuple(cell(read[column], column) for column in columns))
    return found


def batched(elements, size):
    return [tuple(np.stack(values) if not isinstance(values[0], bytes) else np.array(values, object)
                  for values in zip(*elements[i:i + size])) for i in range(0, len(elements), size)]


def padded(elements, size):
    batches = []
    for i in range(0, len(elements), size):
        tags = [element[0] for element in elements[i:i + size]]
        longest = max(len(values) for values in tags)
        batches.append((np.stack([np.pad(values, (0, longest - len(values))) for values in tags]),
                        np.stack([element[1] for element in elements[i:i + size]])))
    return batches


def pipelines():
    files = ("a", "empty", "b", "c")
    numbers = pq.read_table(str(FOLDER / "numbers.parquet"))
    return {
        "parquet": rows("a", columns=("id", "score", "small", "flag")),
        "parquet_nulls": rows("c", columns=("id", "maybe", "rate")),
        "parquet_words": rows("a", "b", columns=("word", "id", "plain")),
        "parquet_vectors": rows("b", "c", columns=("vector", "fixed")),
        "parquet_all_numbers": list(zip(numbers["x"].to_numpy(), numbers["y"].to_numpy())),
        "parquet_files": rows(*files),
        "parquet_batch": batched(rows(*files, columns=("id", "word", "fixed")), 4),
        "parquet_padded_batch": padded(rows("a", "b", columns=("tags", "id")), 4),
        "parquet_skip_shard": rows(*files)[7:][1::2],
        "parquet_repeat_batch": batched(rows("a", "b") * 2, 5),
    }


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_files()
    written = {name: {"elements": elements} for name, elements in pipelines().items()}
    written["parquet_shuffle"] = {"buffer": 4, "repetitions": 1, "elements": rows("a", "b", "c")}
    write_expected(FOLDER, f"pyarrow {pa.__version__}", written)


if __name__ == "__main__":
    main()
