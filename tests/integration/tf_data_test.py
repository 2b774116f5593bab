#!/usr/bin/env python3
"""Compares the elements of Trireme's datasets with those that tf.data and pyarrow read from the same files.

usage: tf_data_test.py PROGRAM FOLDER...

PROGRAM is pipelines_program. A FOLDER has files and expected.json, as the scripts in data/ write them with TensorFlow and
pyarrow. Elements and their order must be the same, bit by bit. After a shuffle the elements must be the same in another
order, in which each comes at most buffer - 1 places too early.

Exit: 0 if all agree, 1 if not.
"""
import json
import subprocess
import sys
import unittest
from pathlib import Path

PROGRAM, *FOLDERS = (Path(word).resolve() for word in sys.argv[1:])


def run_pipelines(folder, names):
    """Returns what the program prints for each pipeline: its elements, or its error."""
    done = subprocess.run([str(PROGRAM), str(folder), *names], capture_output=True, text=True, timeout=250)
    if done.returncode != 0:
        raise AssertionError(f"{PROGRAM.name} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr}")
    return json.loads(done.stdout)


def texts(elements):
    """Returns each element as text, in which the zeros -0.0 and 0.0 differ."""
    return [json.dumps(element) for element in elements]


class PipelinesTest(unittest.TestCase):
    maxDiff = 2000

    def expect_same(self, found, expected):
        self.assertEqual(len(found), len(expected), "number of elements")
        for i, (element, other) in enumerate(zip(found, expected)):
            self.assertEqual(element, other, f"element {i}")

    def expect_shuffled(self, found, expected, buffer):
        self.assertEqual(sorted(found), sorted(expected))
        self.assertEqual(len(set(expected)), len(expected), "the elements of a shuffle must differ")
        self.assertNotEqual(found, expected, "the order is that of the files")
        places = {element: i for i, element in enumerate(expected)}
        for i, element in enumerate(found):
            self.assertLessEqual(places[element] - i, buffer - 1, f"element {i} comes too early")

    def expect_agreement(self, result, pipeline):
        self.assertNotIn("error", result, result)
        found, expected = texts(result["elements"]), texts(pipeline["elements"])
        if "buffer" not in pipeline:
            return self.expect_same(found, expected)
        repetitions = pipeline["repetitions"]
        self.assertEqual(len(found), repetitions * len(expected))
        rounds = [found[i * len(expected):(i + 1) * len(expected)] for i in range(repetitions)]
        for elements in rounds:
            self.expect_shuffled(elements, expected, pipeline["buffer"])
        self.assertEqual(len({tuple(elements) for elements in rounds}), repetitions, "repetitions have the same order")

    def test_elements_and_order(self):
        compared = 0
        for folder in FOLDERS:
            written = json.loads((folder / "expected.json").read_text())
            pipelines = written["pipelines"]
            results = run_pipelines(folder, list(pipelines))
            if all("built without Arrow" in result.get("error", "") for result in results.values()):
                print(f"skipped: {len(results)} pipelines over Parquet; this Trireme was built without Arrow")
                continue
            for name, pipeline in pipelines.items():
                with self.subTest(pipeline=name, folder=folder.name):
                    self.expect_agreement(results[name], pipeline)
                compared += 1
            print(f"{len(pipelines)} pipelines over files of {written['writer']}")
        self.assertGreaterEqual(compared, 30)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
