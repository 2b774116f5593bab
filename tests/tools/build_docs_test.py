#!/usr/bin/env python3
"""Proves that tools/build_docs fails on a public name without a comment and on links that lead nowhere."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULE = "trireme_module(base\n  SOURCES a.cc\n  HEADERS a.h\n  DEPS nothing)\n"


def build(part, folder):
    """Runs the tool on the tree in this folder; returns its exit code and all that it printed."""
    run = subprocess.run([ROOT / "tools/build_docs", part], env={**os.environ, "TRIREME_DOCS_ROOT": str(folder)},
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return run.returncode, run.stdout


class ApiTest(unittest.TestCase):
    def build(self, header, module=MODULE):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(ROOT / "tools", Path(folder) / "tools")
            base = Path(folder) / "trireme/base"
            base.mkdir(parents=True)
            (base / "CMakeLists.txt").write_text(module)
            (base / "a.h").write_text(f"#pragma once\nnamespace trireme {{\n{header}\n}}\n")
            result = build("api", folder)
            gate = Path(folder) / "build/docs/api/classtrireme_1_1Gate.html"
            self.page = gate.read_text() if gate.exists() else ""
            return result

    def assert_fails(self, header, name):
        code, output = self.build(header)
        self.assertNotEqual(code, 0, output)
        self.assertIn(name, output)

    def assert_passes(self, header):
        code, output = self.build(header)
        self.assertEqual(code, 0, output)

    def test_comments_before_and_behind_count(self):
        self.assert_passes("// A gate.\nclass Gate {\n public:\n  // Closes it.\n  void close();\n};")
        self.assert_passes("// Options.\nstruct Options {\n  int size = 1;  // Number of things,\n"
                           "                 // all of them.\n};")
        self.assert_passes("// Kinds.\nenum class Kind {\n  kOne,  // The first.\n  kTwo   // The second.\n};")

    def test_examples_in_comments_are_code(self):
        self.assert_passes("// A gate:\n//\n//   Gate gate;\n//\n// Not thread-safe.\nclass Gate {\n public:\n  // Closes it.\n  void close();\n};")
        self.assertIn('<pre class="fragment">Gate gate;\n</pre>', self.page)

    def test_names_without_a_comment_fail(self):
        self.assert_fails("// A gate.\nclass Gate {\n public:\n  void close();\n};", "close")
        self.assert_fails("// Options.\nstruct Options {\n  int size = 1;\n};", "size")
        self.assert_fails("void close_all();", "close_all")
        self.assert_fails("using Names = int;", "Names")
        self.assert_fails("constexpr int kMost = 1;", "kMost")
        self.assert_fails("class Gate {\n public:\n  // Closes it.\n  void close();\n};", "Gate")

    def test_internals_need_none(self):
        self.assert_passes("// A gate.\nclass Gate {\n private:\n  void close();\n};\n"
                           "namespace internal {\nstruct Detail {\n  int size;\n};\n}")

    def test_no_header_is_an_error(self):
        code, output = self.build("", module="trireme_module(base\n  SOURCES a.cc)\n")
        self.assertNotEqual(code, 0)
        self.assertIn("no CMakeLists.txt lists a public header", output)


# A class of the API reference, as doxygen describes it.
TAGS = """<tagfile><compound kind="class"><name>trireme::Gate</name><filename>classtrireme_1_1Gate.html</filename>
<member kind="function"><name>close</name><anchorfile>classtrireme_1_1Gate.html</anchorfile><anchor>a1</anchor></member>
</compound></tagfile>"""
CLASSES = '<a class="el" href="classtrireme_1_1Gate.html">Gate</a></td><td class="desc">Keeps others out. </td></tr>'


class SiteTest(unittest.TestCase):
    def build_with(self, text, page="docs/concepts.md", tags=TAGS):
        """Builds the site with a text added to a page; returns the exit code, the output, and that page and api.html as HTML."""
        with tempfile.TemporaryDirectory() as folder:
            for part in ["docs", "tools", "examples"]:
                shutil.copytree(ROOT / part, Path(folder) / part)
            for part in ROOT.iterdir():
                if not (Path(folder) / part.name).exists() and part.name != "build":
                    os.symlink(part, Path(folder) / part.name)
            with open(Path(folder) / page, "a") as file:
                file.write(text)
            if tags:
                api = Path(folder) / "build/docs/api"
                api.mkdir(parents=True)
                (api.parent / "api.tag").write_text(tags)
                for name in ["annotated", "namespacemembers", "files", "classtrireme_1_1Gate"]:
                    (api / f"{name}.html").write_text(CLASSES)
            code, output = build("site", folder)
            site = Path(folder) / "build/docs/site"
            pages = [site / Path(page).with_suffix(".html").name, site / "api.html"]
            return code, output, *((html.read_text() if html.exists() else "") for html in pages)

    def test_names_lead_into_the_api_reference(self):
        code, output, page, api = self.build_with("\n`tr::Gate`, `tr::Gate::close()`, `tr::Gates` and [`tr::Gate`](fit.md)\n")
        self.assertEqual(code, 0, output)
        self.assertIn('<a href="api/classtrireme_1_1Gate.html"><code>tr::Gate</code></a>', page)
        self.assertIn('<a href="api/classtrireme_1_1Gate.html#a1"><code>tr::Gate::close()</code></a>', page)
        self.assertIn('<code>tr::Gates</code> and <a href="fit.html"><code>tr::Gate</code></a>', page)
        self.assertIn('<p class="names">API: <a href="api/classtrireme_1_1Gate.html">', page)
        self.assertIn("Keeps others out.", api)

    def test_a_site_without_the_api_reference_fails(self):
        code, output, *_ = self.build_with("", tags="")
        self.assertNotEqual(code, 0)
        self.assertIn("first run: tools/build_docs api", output)

    def test_parts_of_other_files_that_are_missing_fail(self):
        code, output, *_ = self.build_with("\n<!-- rows of README.md: no such case -->\n", "docs/index.md")
        self.assertNotEqual(code, 0)
        self.assertIn("README.md has no table with a row 'no such case'", output)

    def test_links_that_lead_nowhere_fail(self):
        code, output, *_ = self.build_with("\n[a](nowhere.md) [b](errors.md#no-such-heading) [c](../trireme/no_such_file.h)\n")
        self.assertNotEqual(code, 0)
        for part in ["nowhere.md", "no-such-heading", "no_such_file.h"]:
            self.assertIn(part, output)


if __name__ == "__main__":
    unittest.main()
