#!/usr/bin/env python3
"""Checks that tools/check_lengths passes short sources and functions, and fails on long ones of every form."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "check_lengths"


def check(source, exceptions="{}"):
    """Runs the tool on a tree of this one source. Returns its output lines without the summary, and its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        tool = Path(folder) / "tools" / "check_lengths"
        tool.parent.mkdir()
        text = TOOL.read_text()
        begin = text.index("EXCEPTIONS = {")
        tool.write_text(text[:begin] + f"EXCEPTIONS = {exceptions}" + text[text.index("}", begin) + 1:])
        root = Path(folder) / "tree"
        (root / "trireme").mkdir(parents=True)
        if source is not None:
            (root / "trireme" / "a.cc").write_text(source)
        run = subprocess.run([sys.executable, tool, root], capture_output=True, text=True)
        return run.stdout.splitlines()[:-1], run.returncode


def body(lines):
    return "  work();\n" * lines


class CheckLengthsTest(unittest.TestCase):
    def assert_fault(self, source, line, text):
        faults, code = check(source)
        self.assertEqual(faults, [f"trireme/a.cc:{line}: {text}"])
        self.assertEqual(code, 1)

    def test_long_source(self):
        self.assertEqual(check("int a;\n" * 500), ([], 0))
        self.assert_fault("int a;\n" * 501, 1, "the source has 501 lines; at most 500 are allowed")

    def test_long_function(self):
        self.assertEqual(check("void f() {\n" + body(78) + "}\n"), ([], 0))
        self.assert_fault("void f() {\n" + body(79) + "}\n", 1, "'f' has 81 lines; at most 80 are allowed")

    def test_finds_functions_of_every_form(self):
        long = body(80) + "}\n"
        for head, line, name in [
            ("namespace a {\nnamespace {\n\nint b = 0;\n\nvoid A::f(int x,\n          int y) const {\n", 6, "A::f"),
            ("class A {\n public:\n  ~A() {\n", 3, "~A"),
            ("A::A(int b) : b_{b}, c_([] { return 1; }) {\n", 1, "A::A"),
            ("template <typename R>\nstruct A<R(int)> : B<R> {\n  static R f(int i) {\n", 3, "f"),
            ("bool operator==(const A& a, const A& b) {\n", 1, "operator=="),
            ("auto f(std::vector<int> v = {}) -> int {\n", 1, "f"),
            ("TEST(Suite,\n     Name) {\n", 1, "TEST(Suite, Name)"),
        ]:
            with self.subTest(head):
                faults, code = check(head + long)
                self.assertEqual(code, 1)
                self.assertEqual(len(faults), 1)
                self.assertTrue(faults[0].startswith(f"trireme/a.cc:{line}: '{name}' has "), faults[0])

    def test_braces_in_comments_and_literals_are_ignored(self):
        self.assertEqual(check("// {\n/* {\n{ */\nconst char* a = \"{\";\nchar b = '{';\nauto c = R\"x({{)\" {)x\";\n"
                               "void f() {\n" + body(3) + "}\n" + "int d;\n" * 90), ([], 0))

    def test_types_and_tables_are_not_functions(self):
        self.assertEqual(check("struct A {\n" + "  int a;\n" * 90 + "};\n"), ([], 0))
        self.assertEqual(check("const int a[] = {\n" + "  1,\n" * 90 + "};\n"), ([], 0))

    def test_exceptions_apply_and_must_be_needed(self):
        source = "void f() {\n" + body(80) + "}\n"
        self.assertEqual(check(source, '{"trireme/a.cc:f": "a table"}'), ([], 0))
        faults, code = check("int a;\n", '{"trireme/a.cc:f": "a table"}')
        self.assertEqual((len(faults), code), (1, 1))

    def test_an_empty_tree_is_an_error(self):
        self.assertEqual(check(None)[1], 2)


if __name__ == "__main__":
    unittest.main()
