#!/usr/bin/env python3
"""Proves that tools/check_pages finds pages that are too wide, cut pictures and dead links, and accepts good pages."""

import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ('<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="40" viewBox="0 0 {0} 40">'
           '<text x="{1}" y="20" font-size="{2}">a text</text></svg>')
GOOD = """<h1 id="here">Good</h1><p><a href="other.html#there">other</a> <a href="#here">here</a> <a href="api/it.html#a1">API</a>
<a href="https://nowhere.invalid/">elsewhere</a> <img src="good.svg" style="max-width: 100%"></p>
<pre style="overflow: auto"><code>""" + "wide " * 400 + "</code></pre>"


def check(pages, *arguments):
    """Runs the tool on a site of these pages and pictures; returns its exit code and all that it printed."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in pages.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text if name.endswith(".svg") else f'<!doctype html><meta charset="utf-8"><body>{text}</body>')
        run = subprocess.run([ROOT / "tools/check_pages", *arguments, folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return run.returncode, run.stdout


class PagesTest(unittest.TestCase):
    def test_good_pages_pass(self):
        with tempfile.TemporaryDirectory() as pictures:
            code, output = check({"index.html": GOOD, "other.html": '<h2 id="there">There</h2>', "api/it.html": '<a id="a1"></a><a href="no.html"></a>',
                                  "good.svg": PICTURE.format(520, 10, 14)}, "--pictures", pictures)
            self.assertEqual((code, output), (0, "2 pages, 0 faults\n"))
            self.assertEqual(sorted(path.name for path in Path(pictures).iterdir()),
                             ["index-1300.png", "index-400.png", "other-1300.png", "other-400.png"])

    def test_each_fault_is_found(self):
        code, output = check({
            "table.html": "<table><tr>" + "<td>wide_cell</td>" * 8 + "</tr></table>",
            "hidden.html": '<div style="overflow: hidden"><p style="width: 500px">sticks out</p></div>',
            "missing.html": '<img src="nothing.svg">',
            "cut.html": '<div style="overflow: hidden; width: 200px"><img src="good.svg"></div>',
            "beyond.html": '<img src="beyond.svg" style="max-width: 100%">',
            "small.html": '<img src="small.svg" style="max-width: 100%">',
            "drawing.html": '<pre style="overflow: auto"><code>' + "│ " * 400 + "</code></pre>",
            "links.html": '<a href="no_page.html">a</a> <a href="table.html#no-anchor">b</a> <a href="api/it.html#b">c</a>',
            "api/it.html": '<a id="a1"></a>',
            "good.svg": PICTURE.format(520, 10, 14), "beyond.svg": PICTURE.format(520, 500, 14), "small.svg": PICTURE.format(520, 10, 9)})
        self.assertEqual(code, 1, output)
        for fault in ["table.html: [bar] the page is ", "hidden.html: [bar] <p> sticks out: sticks out (at 400 pixels)",
                      "missing.html: [picture] nothing.svg does not load (at 1300 pixels)",
                      "missing.html: [link] nothing.svg does not exist", "cut.html: [picture] good.svg is cut (at 1300 pixels)",
                      "beyond.html: [picture] beyond.svg: 'a text' is beyond the edge", "small.html: [picture] small.svg is shown 384 pixels wide",
                      "drawing.html: [drawing] ", "links.html: [link] no_page.html does not exist",
                      "links.html: [link] table.html#no-anchor: the page has no such anchor",
                      "links.html: [link] api/it.html#b: the page has no such anchor"]:
            self.assertIn(fault, output)
        self.assertNotIn("table.html: [bar] the page is 1300", output)
        self.assertNotIn("[picture] good.svg: ", output)

    def test_no_page_is_an_error(self):
        code, output = check({})
        self.assertEqual(code, 2)
        self.assertIn("first run: tools/build_docs", output)


if __name__ == "__main__":
    unittest.main()
