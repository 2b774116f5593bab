#!/usr/bin/env python3
"""Exchanges tensors with Python: safetensors and PyTorch read what Trireme writes, and the other way round.

usage: exchange_test.py TRIREME EXCHANGE_PROGRAM

Runs with a Python that has torch, safetensors and numpy, which tools/setup installs into .venv.

Exit: 0 if all agree, 1 if not, 77 if the Python packages are missing.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import safetensors
    import safetensors.numpy
    import safetensors.torch
    import torch
    from torch import nn
except ImportError as error:
    print(f"skipped: {error}; tools/setup installs it")
    sys.exit(77)

TRIREME, PROGRAM = (str(Path(word).resolve()) for word in sys.argv[1:3])
MOST_ERROR = 1e-6  # Largest relative error of a tensor.


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    """Has the names and shapes of torchvision's resnet18."""

    def __init__(self, classes=1000):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        widths = [64, 64, 128, 256, 512]
        for i in range(4):
            layer = nn.Sequential(Block(widths[i], widths[i + 1], 1 if i == 0 else 2),
                                  Block(widths[i + 1], widths[i + 1], 1))
            setattr(self, f"layer{i + 1}", layer)
        self.fc = nn.Linear(512, classes)

    def forward(self, x):
        y = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        y = self.layer4(self.layer3(self.layer2(self.layer1(y))))
        return self.fc(torch.flatten(nn.functional.adaptive_avg_pool2d(y, 1), 1))


def run(*words, cwd=None):
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=200,
                          env={**os.environ, "OMP_WAIT_POLICY": "passive"})
    if done.returncode != 0:
        raise AssertionError(f"{words} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def outputs_of(net, x):
    """Returns what exchange_program writes for the same net and input."""
    with torch.no_grad():
        evaluated = net.eval()(x)
        return {"evaluated": evaluated, "trained": net.train()(x)}


class ExchangeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        torch.manual_seed(1)

    def path(self, name):
        return str(self.folder / name)

    def expect_equal(self, first, second):
        """Compares two dicts of tensors bit by bit."""
        self.assertEqual(sorted(first), sorted(second))
        for name, tensor in first.items():
            self.assertEqual((tensor.dtype, tensor.shape), (second[name].dtype, second[name].shape), name)
            self.assertTrue(torch.equal(tensor, second[name]), name)

    def expect_close(self, outputs, expected):
        self.assertEqual(sorted(outputs), sorted(expected))
        for name, tensor in outputs.items():
            error = ((tensor - expected[name]).norm() / expected[name].norm()).item()
            self.assertLessEqual(error, MOST_ERROR, name)

    def write_input(self):
        x = torch.randn(2, 3, 64, 64)
        safetensors.torch.save_file({"x": x}, self.path("x.safetensors"))
        return x

    def test_a_net_of_python_runs_in_trireme(self):
        net = ResNet18()
        with torch.no_grad():
            net(torch.randn(4, 3, 64, 64))  # Gives the statistics of batch norm values.
        safetensors.torch.save_file(net.state_dict(), self.path("net.safetensors"))
        x = self.write_input()
        run(PROGRAM, "load", self.path("net.safetensors"), self.path("x.safetensors"), self.path("y.safetensors"))
        self.expect_close(safetensors.torch.load_file(self.path("y.safetensors")), outputs_of(net, x))

    def test_a_net_of_trireme_runs_in_python(self):
        x = self.write_input()
        run(PROGRAM, "save", "7", self.path("net.safetensors"), self.path("x.safetensors"), self.path("y.safetensors"))
        net = ResNet18()
        state = safetensors.torch.load_file(self.path("net.safetensors"))
        net.load_state_dict(state)  # Strict: all names must agree.
        self.assertGreater(len(state), 120)
        self.assertEqual(state["bn1.num_batches_tracked"].item(), 1)
        self.expect_close(safetensors.torch.load_file(self.path("y.safetensors")), outputs_of(net, x))
        numpy = safetensors.numpy.load_file(self.path("net.safetensors"))
        self.assertEqual(numpy["fc.weight"].shape, (1000, 512))

    def test_a_checkpoint_is_read_by_python(self):
        run(PROGRAM, "checkpoint", self.path("checkpoints"), self.path("net.safetensors"), cwd=self.folder)
        [checkpoint] = (self.folder / "checkpoints").iterdir()
        manifest = json.loads((checkpoint / "manifest.json").read_text())["manifest"]
        # The files of the servers have shards. Joined, they are the tensors of the net.
        files = [safetensors.torch.load_file(str(checkpoint / file["name"])) for file in manifest["files"]]
        self.assertEqual(len(files), 3)
        joined, slots = {}, {}
        for variable in manifest["variables"]:
            shards = variable["shards"]
            for i, slot in enumerate([None, *variable["slots"]]):
                places = [shard["contents"] if slot is None else shard["slots"][i - 1] for shard in shards]
                parts = [files[place["file"]][place["name"]] for place in places]
                whole = parts[0] if len(parts) == 1 else torch.cat(parts)
                if slot is None:
                    joined[variable["name"]] = whole
                else:
                    slots[f"{variable['name']}#{slot}"] = whole
        self.assertTrue(any(len(variable["shards"]) == 2 for variable in manifest["variables"]))
        count = joined.pop("count")
        self.assertEqual(count.item(), 5)
        self.expect_equal(joined, safetensors.torch.load_file(self.path("net.safetensors")))
        self.assertIn("last.weight#exp_avg", slots)

        # The command joins them too: into one file, or several with an index.
        run(TRIREME, "checkpoint", "convert", self.path("checkpoints"), self.path("whole"), "--optimizer")
        whole = safetensors.torch.load_file(self.path("whole/model.safetensors"))
        self.expect_equal(whole, {**joined, "count": count})
        with safetensors.safe_open(self.path("whole/model.safetensors"), "pt") as file:
            self.assertEqual(file.metadata(), {"format": "pt"})
        optimizer = safetensors.torch.load_file(self.path("whole/optimizer.safetensors"))
        self.expect_equal({name: tensor for name, tensor in optimizer.items() if not name.endswith("#step")}, slots)
        self.assertEqual(optimizer["last.weight#step"].item(), 5)
        run(TRIREME, "checkpoint", "convert", self.path("checkpoints"), self.path("parts"), "--max-shard-size", "150")
        index = json.loads((self.folder / "parts/model.safetensors.index.json").read_text())
        self.assertEqual(index["metadata"], {"total_size": sum(tensor.nbytes for tensor in whole.values())})
        self.assertEqual(sorted(index["weight_map"]), sorted(whole))
        self.assertGreater(len(set(index["weight_map"].values())), 1)
        parts = {}
        for name in sorted(set(index["weight_map"].values())):
            loaded = safetensors.torch.load_file(self.path(f"parts/{name}"))
            self.assertEqual({index["weight_map"][tensor] for tensor in loaded}, {name})
            parts.update(loaded)
        self.expect_equal(parts, whole)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
