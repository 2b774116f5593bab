#!/usr/bin/env python3
"""Proves that tools/check_cuda fails on a source that misuses CUDA or does not use it. Needs build/release, configured."""

import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "trireme/placement/cuda_devices.cc"


def check(text):
    """Runs the tool on a source with this text; returns its exit code and all that it printed."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "cuda_copy.cc"
        source.write_text(text)
        run = subprocess.run([ROOT / "tools/check_cuda", source], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return run.returncode, run.stdout


class CheckCudaTest(unittest.TestCase):
    def assert_fails(self, old, new, message):
        text = SOURCE.read_text()
        self.assertIn(old, text)
        code, output = check(text.replace(old, new))
        self.assertEqual(code, 1, output)
        self.assertIn(message, output)

    def test_a_function_that_cuda_does_not_have_fails(self):
        self.assert_fails("cudaMemGetInfo(&", "cudaMemGetFacts(&", "cudaMemGetFacts")

    def test_an_argument_of_another_type_fails(self):
        self.assert_fails("get_p2p_access(index, peer)", 'get_p2p_access(index, "1")', "get_p2p_access")

    def test_a_source_without_code_fails(self):
        code, output = check("#include <cuda_runtime_api.h>\nint nothing = 0;\n")
        self.assertEqual(code, 1, output)
        self.assertIn("uses no function of CUDA", output)


if __name__ == "__main__":
    unittest.main()
