"""Links the pages of the site to the API reference that doxygen has made in build/docs/api.

Each `tr::Name` in a page becomes a link to the description of that name, and each guide begins with the names that it uses most.
"""

import re
from collections import Counter
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

NAME = re.compile(r"\btr::(\w+(?:::\w+)*)")
MOST = 8  # Names at the top of a guide.


def names_of(tag_file):
    """Returns the address of each public name, such as Model or Model::fit, and the set of those that are classes."""
    addresses, classes = {}, set()
    for compound in ElementTree.parse(tag_file).getroot():
        name = compound.findtext("name")
        if compound.get("kind") not in ("class", "struct", "namespace") or not name.startswith("trireme"):
            continue
        name = name.removeprefix("trireme").removeprefix("::")
        if name:
            addresses[name] = compound.findtext("filename")
            classes.add(name)
        for member in compound.findall("member"):
            full = f"{name}::{member.findtext('name')}" if name else member.findtext("name")
            addresses.setdefault(full, f"{member.findtext('anchorfile')}#{member.findtext('anchor')}")
    return addresses, classes


def briefs_of(api):
    """Returns the first sentence about each class, as doxygen's list of classes has it."""
    rows = re.findall(r'<a class="el" href="((?:class|struct)trireme[^"]*)"[^>]*>([\w:]+)</a></td><td class="desc">(.*?)</td></tr>',
                      (api / "annotated.html").read_text())
    return {address: (name, unescape(re.sub(r"<[^>]*>", "", text)).strip()) for address, name, text in rows}


class Reference:
    """The API reference in a folder; `addresses` is empty if doxygen has not run."""

    def __init__(self, api, tag_file):
        self.api = Path(api)
        self.addresses, self.classes = names_of(tag_file)

    def used(self, markdown):
        """Returns the classes that a page names, those first that it names most often."""
        counts = Counter(match.group(1).split("::")[0] for match in NAME.finditer(markdown))
        known = [name for name, _ in counts.most_common() if name in self.classes and not name.endswith("Options")]
        return known[:MOST]

    def link(self, name, up=""):
        return f'<a href="{up}api/{self.addresses[name]}"><code>tr::{name}</code></a>'

    def linked(self, html, up):
        """Returns the HTML of a page in which each inline `tr::Name` that is not in a link or a heading is one."""
        def replaced(match):
            found = NAME.match(unescape(match.group(1)))
            name = found.group(1) if found else ""
            while name and name not in self.addresses:
                name = name.rpartition("::")[0]
            return f'<a href="{up}api/{self.addresses[name]}">{match.group()}</a>' if name else match.group()

        parts = re.split(r"(<a\b.*?</a>|<pre\b.*?</pre>|<h[1-6]\b.*?</h[1-6]>)", html, flags=re.DOTALL)
        return "".join(part if number % 2 else re.sub(r"<code>(tr::[^<]*)</code>", replaced, part)
                       for number, part in enumerate(parts))

    def with_names(self, html, markdown, up):
        """Returns the HTML of a guide with the names that it uses below its heading."""
        links = ", ".join(self.link(name, up) for name in self.used(markdown))
        return html.replace("</h1>", f'</h1>\n<p class="names">API: {links}</p>', 1) if links else html

    def page(self, guides):
        """Returns the page that leads into the reference; `guides` are pairs of an address and the page's text."""
        parts = ["# The API\n\nPrograms include `trireme/trireme.h`. All names are in the namespace `trireme`, which these pages call "
                 "`tr`. The reference is made from the comments in the public headers: [all classes](api/annotated.html), "
                 "[functions and other names](api/namespacemembers.html), [headers](api/files.html).\n\n"
                 "## By guide\n\n| guide | classes |\n|---|---|\n"]
        for address, markdown in guides:
            title = re.search(r"^# (.*)", markdown, re.MULTILINE).group(1)
            links = ", ".join(f"[`tr::{name}`](api/{self.addresses[name]})" for name in self.used(markdown))
            parts.append(f"| [{title}]({address}) | {links} |\n" if links else "")
        parts.append("\n## All classes\n\n| class | |\n|---|---|\n")
        for address, (name, brief) in sorted(briefs_of(self.api).items(), key=lambda item: item[1][0].lower()):
            parts.append(f"| [`tr::{name}`](api/{address}) | {brief.replace('|', chr(92) + '|').replace('<', '&lt;')} |\n")
        return "".join(parts)
