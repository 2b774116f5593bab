#!/usr/bin/env python3
"""Proves that tools/docs/draw fails on a picture that is not what its text makes, and on a text that it cannot draw.

Also shows what tools/docs/record writes."""

import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = "# Trireme\n\n## Numbers\n\n| | ours | anchor | ratio |\n|---|---|---|---|\n| steps | 3/s | Gloo: 2/s | 1.5 |\n"


class DrawTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "tools/docs").mkdir(parents=True)
        (self.root / "docs/images").mkdir(parents=True)
        (self.root / "README.md").write_text(NUMBERS)
        shutil.copy(ROOT / "tools/docs/draw", self.root / "tools/docs/draw")

    def draw(self, *arguments):
        """Runs the tool; returns its exit code and all that it printed."""
        run = subprocess.run([self.root / "tools/docs/draw", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return run.returncode, run.stdout

    def drawn(self, text):
        """Draws a text; returns the picture."""
        (self.root / "docs/images/it.txt").write_text(text)
        code, output = self.draw()
        self.assertEqual(code, 0, output)
        return (self.root / "docs/images/it.svg").read_text()

    def assert_fails(self, text, reason, *arguments):
        (self.root / "docs/images/it.txt").write_text(text)
        code, output = self.draw(*arguments)
        self.assertEqual(code, 1, output)
        self.assertIn(reason, output)

    def test_check_compares_pictures_with_their_texts(self):
        self.drawn("boxes Two.\nrow a\nrow b\nbox a: A\nbox b: B\n  here\narrow a b\n")
        self.assertEqual(self.draw("--check")[0], 0)
        self.assert_fails("boxes Two.\nrow a\nbox a: A\n", "it.svg is not what its text makes", "--check")

    def test_check_compares_bars_with_the_figures_of_the_page(self):
        self.assertIn(">1.5<", self.drawn("bars Ratios.\ntable README.md: Numbers\n"))
        (self.root / "README.md").write_text(NUMBERS.replace("1.5 |", "1.6 |"))
        code, output = self.draw("--check")
        self.assertEqual(code, 1)
        self.assertIn("it.svg is not what its text makes", output)

    def test_each_kind_shows_its_words(self):
        self.assertIn(">a message<", self.drawn("sequence One.\nlanes x | y/z\n1 > 2: a message\n"))
        self.assertIn(">$ ls &lt;here&gt;<", self.drawn("terminal One.\n$ ls <here>\n"))
        self.assertIn(">yyy<", self.drawn("terminal One.\n" + "x" * 67 + "yyy\n"))
        self.assertIn(">one process<", self.drawn("curves One.\nseries one process\nepoch 1: loss 0.4\nepoch 2: loss 0.3\n"))

    def test_texts_that_cannot_be_drawn_fail(self):
        self.assert_fails("circles Two.\n", "the kind 'circles' is not known")
        self.assert_fails("boxes One.\nrow a\nbok a: A\n", "'bok a: A' is neither")
        self.assert_fails("sequence One.\nlanes x | y\n1 to 2: a message\n", "neither a message nor a note")
        self.assert_fails("bars Ratios.\ntable README.md: Nothing\n", "has no table below '## Nothing'")

    def test_record_writes_what_commands_print_at_a_terminal(self):
        target = self.root / "it.txt"
        record = [ROOT / "tools/docs/record", target, "One."]
        subprocess.run([*record, "test -t 1 && printf 'a \\033[1mb\\033[0m\\n'", "echo c >&2"], check=True, stdout=subprocess.PIPE)
        self.assertEqual(target.read_text(), "terminal One.\n$ test -t 1 && printf 'a \\033[1mb\\033[0m\\n'\na b\n$ echo c >&2\nc\n")
        failed = subprocess.run([*record, "exit 3"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(failed.returncode, 1)
        self.assertIn("the command 'exit 3' failed with status 3", failed.stderr)

    def test_no_text_is_an_error(self):
        self.assertEqual(self.draw()[0], 1)


if __name__ == "__main__":
    unittest.main()
