#!/usr/bin/env python3
"""Proves that tools/check_words finds each opening and word in comments, messages and docs, and leaves code alone."""

import contextlib
import importlib.machinery
import importlib.util
import io
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

TOOL = Path(__file__).resolve().parents[2] / "tools" / "check_words"


def load_tool():
    """Imports the tool, which has no ending, without leaving compiled files beside it."""
    loader = importlib.machinery.SourceFileLoader("check_words", str(TOOL))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_words", loader))
    with mock.patch.object(sys, "dont_write_bytecode", True):
        loader.exec_module(module)
    return module


check_words = load_tool()


def run(*arguments):
    """Runs the tool in this process; returns the lines it printed, and its exit code."""
    output = io.StringIO()
    with mock.patch.object(sys, "argv", [str(TOOL), *arguments]), contextlib.redirect_stdout(output), \
            contextlib.redirect_stderr(io.StringIO()):
        code = check_words.main()
    return output.getvalue().splitlines(), code


def check(name, text):
    """Runs the tool on a tree of this one file; returns its findings without the total, and its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        if text is not None:
            (Path(folder) / name).write_text(text)
        lines, code = run(folder)
        return lines[:-1], code


class CheckWordsTest(unittest.TestCase):
    openings = ["Of a batch.", "Those that wait.", "Such calls.", "What it holds.", "Who asked.", "It is open.",
                "So many calls.", "None of them.", "Whether it is open."]
    words = [
        ("Stops whoever waits.", "name the component"),
        ("There are as good as no threads.", "almost no"),
        ("The reckoned time.", "estimate"),
        ("Waits for a sign of life.", "health check"),
        ("Results come home.", "is returned"),
        ("Calls patiently.", "with retries"),
        ("Then tells all of it.", "broadcast"),
        ("Waits longer and longer.", "back off"),
        ("'boss' is no role.", "is not a"),
        ("The worker who answers.", "'which' or 'that'"),
    ]

    def assert_clean(self, name, text):
        self.assertEqual(check(name, text), ([], 0), text)

    def assert_finding(self, name, text, line, part):
        findings, code = check(name, text)
        self.assertEqual(len(findings), 1, f"{text}\n{findings}")
        self.assertTrue(findings[0].startswith(f"{name}:{line}: "), findings[0])
        self.assertIn(part, findings[0])
        self.assertEqual(code, 1)

    def test_every_opening(self):
        for opening in self.openings:
            word = opening.split()[0]
            self.assert_finding("a.h", f"// {opening}\nint a;\n", 1, f"begins with '{word}")
            self.assert_finding("a.h", f"int a;  // {opening}\n", 1, f"begins with '{word}")
            self.assert_finding("a.md", f"A paragraph.\n\n{opening}\n", 3, f"begins with '{word}")

    def test_every_word(self):
        for text, part in self.words:
            self.assert_finding("a.h", f"// {text}\n", 1, part)
            self.assert_finding("a.cc", f'fail("{text}");\n', 1, part)
            self.assert_finding("a.md", f"{text}\n", 1, part)
            self.assert_finding("a.py", f"# {text}\n", 1, part)

    def test_plain_sentences_pass(self):
        for text in ["Returns true if the gate is open.", "The caller of `f` waits.", "There is no task 7.",
                     "Of course this holds.", "The connection is no longer used."]:
            self.assert_clean("a.h", f"// {text}\n")
            self.assert_clean("a.md", f"{text}\n")

    def test_an_opening_counts_only_at_the_beginning(self):
        self.assert_clean("a.h", "// Sends the batch. It is in flight\n// until the worker answers.\n")
        self.assert_clean("a.h", "// Sends the frames, and the first\n// Of all calls.\n")
        self.assert_finding("a.h", "// Sends the batch.\nint a;\n// Of a call.\n", 3, "'Of'")
        self.assert_finding("a.h", "int a;  // Sends.\n        // Receives.\nint b;  // Of a call.\n", 3, "'Of'")
        self.assert_finding("a.h", "// Sends the batch.\n//\n// What is lost is sent again.\n", 3, "'What'")

    def test_a_phrase_may_reach_over_a_line(self):
        self.assert_finding("a.h", "// Waits for a sign\n// of life.\n", 1, "health check")
        self.assert_finding("a.h", "// Waits.\n// For a sign of life.\n", 2, "health check")

    def test_the_lists_are_those_of_the_tool(self):
        self.assertEqual(len(self.openings), len(check_words.OPENINGS))
        self.assertEqual(len(self.words), len(check_words.WORDS))

    def test_literals_beside_each_other_are_one_message(self):
        self.assert_finding("a.cc", 'fail("a sign "\n     "of life");\n', 1, "health check")
        self.assert_clean("a.cc", 'fail("Done. "\n     "What follows");\n')
        self.assert_finding("a.cc", 'fail("Done.", "What follows");\n', 1, "'What'")

    def test_messages(self):
        self.assert_finding("a.cc", 'log("What happened");\n', 1, "'What'")
        self.assert_finding("a.cc", 'auto a = R"(x\n\'boss\' is no role)";\n', 2, "is not a")
        self.assert_clean("a.cc", 'log("of task 7");\n')

    def test_code_is_not_checked(self):
        self.assert_clean("a.cc", "int whoever = Whether(reckoned);\n")
        self.assert_clean("a.md", "```\nWhether whoever reckoned\n```\n\n    Of a log.\n\nUse `whoever`.\n")

    def test_headings_lists_and_tables(self):
        self.assert_clean("a.md", "## What goes wrong\n\nA paragraph.\n")
        self.assert_finding("a.md", "- Whether it is.\n", 1, "'Whether'")
        self.assert_finding("a.md", "1. Those that wait.\n", 1, "'Those'")
        self.assert_finding("a.md", "| `done()` | whether they are |\n", 1, "'Whether'")

    def test_scripts(self):
        self.assert_finding("run", "#!/usr/bin/env bash\n# Whether it runs.\n", 2, "'Whether'")
        self.assert_finding("a.cmake", "# What is built.\n", 1, "'What'")
        self.assert_finding("a.py", '"""What it does."""\n', 1, "'What'")
        self.assertEqual(check("data.bin", "Whether it runs.\n"), ([], 2), "nothing to check")

    def test_an_empty_tree_is_an_error(self):
        self.assertEqual(check("a.h", None), ([], 2))

    def test_this_repository_is_looked_at(self):
        lines, _ = run()
        self.assertRegex(lines[-1], r"^[1-9]\d\d+ files, ")


if __name__ == "__main__":
    unittest.main()
