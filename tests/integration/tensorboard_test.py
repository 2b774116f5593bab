#!/usr/bin/env python3
"""Reads event files by TensorBoard's own code and compares the values with those that were written.

usage: tensorboard_test.py TENSORBOARD_PROGRAM

Runs with a Python that has tensorboard, which tools/setup installs into .venv.

Exit: 0 if all agree, 1 if not, 77 if the Python packages are missing.
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import numpy
    from tensorboard.backend.event_processing import plugin_event_multiplexer
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util
except ImportError as error:
    print(f"skipped: {error}; tools/setup installs it")
    sys.exit(77)

PROGRAM = str(Path(sys.argv[1]).resolve())


def read(folder):
    """Returns the events of a run."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return events


def figures(events, tag):
    return [(event.step, event.value) for event in events.Scalars(tag)]


def tensors(events, tag):
    return [(event.step, tensor_util.make_ndarray(event.tensor_proto)) for event in events.Tensors(tag)]


class TensorBoardTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        done = subprocess.run([PROGRAM, folder.name], check=True, timeout=100, stdout=subprocess.PIPE)
        cls.history = dict(json.loads(done.stdout)["figures"])
        cls.events = read(cls.folder / "events/train")

    def test_scalars(self):
        self.assertEqual(figures(self.events, "loss"), [(step, numpy.float32(1 / (step + 1))) for step in range(60)])
        self.assertEqual(figures(self.events, "accuracy"), [(39, 0), (59, 0)])

    def test_histograms(self):
        histograms = tensors(self.events, "fc1/weight")
        self.assertEqual([step for step, _ in histograms], list(range(60)))
        for n, buckets in histograms:
            numpy.testing.assert_array_equal(buckets, [[-n, 0, n], [0, 0.5, 7], [0.5, n + 1, 2 * n]])

    def test_texts(self):
        texts = {step: text.item().decode() for step, text in tensors(self.events, "notes")}
        self.assertEqual(texts, {0: "**Größe** 0", 40: "**Größe** 40"})

    def test_names_the_writer(self):
        self.assertEqual(self.events.GetSourceWriter(), "trireme")

    def test_dashboards_find_their_values(self):
        runs = plugin_event_multiplexer.EventMultiplexer()
        runs.AddRunsFromDirectory(str(self.folder / "events"))
        runs.Reload()
        self.assertEqual(set(runs.Runs()), {"train", "validation"})
        for plugin, tags in (("scalars", {"loss", "accuracy"}), ("histograms", {"fc1/weight"}), ("text", {"notes"})):
            for run in ("train", "validation"):
                self.assertEqual(set(runs.PluginRunToTagToContent(plugin)[run]), tags)
        self.assertEqual([event.step for event in runs.Tensors("validation", "loss")], [0, 1, 2])

    def test_fit(self):
        train, validation = read(self.folder / "fit/train"), read(self.folder / "fit/validation")
        self.assertEqual(set(train.Tags()["scalars"]), {"epoch_loss", "epoch_mean_absolute_error", "epoch_learning_rate",
                                                        "batch_loss", "batch_mean_absolute_error"})
        self.assertEqual(set(validation.Tags()["scalars"]), {"epoch_loss", "epoch_mean_absolute_error"})
        for events, prefix in ((train, ""), (validation, "val_")):
            for name in ("loss", "mean_absolute_error"):
                values = [numpy.float32(value) for value in self.history[prefix + name]]
                self.assertEqual(figures(events, f"epoch_{name}"), list(enumerate(values)))
        self.assertEqual(figures(train, "epoch_learning_rate"), [(epoch, 0.0625) for epoch in range(3)])
        self.assertEqual([step for step, _ in figures(train, "batch_loss")], [4, 8, 12, 16, 20, 24])
        self.assertEqual(figures(train, "batch_loss")[1][1], figures(train, "epoch_loss")[0][1])
        self.assertEqual([(step, text.item()) for step, text in tensors(train, "notes")], [(0, b"**linear**")])
        for tag, count in (("weight/histogram", 4), ("bias/histogram", 1)):
            self.assertEqual([(step, buckets[:, 2].sum()) for step, buckets in tensors(train, tag)], [(0, count), (2, count)])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
