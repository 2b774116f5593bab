"""Adapts the pages of the repository to the site that mkdocs builds from docs/.

Pages link to files outside of docs/, which works in a checkout but not on the site. The files in PAGES become pages of
the site. Links to all others become plain text, after a check that the file exists, so that a broken link is still an
error. Three comments of docs/index.md are replaced by parts of other files, so that each part is written once:

  <!-- source: FILE -->              the program in FILE, from its first #include on
  <!-- output of NAME in FILE -->    the blocks around the same comment without 'in FILE' in the page FILE: command and output
  <!-- figures of FILE: A, B, C -->  the rows of a table in FILE that begin with A, B and C, as large figures
"""

import logging
import os
import re
from pathlib import Path

from mkdocs.structure.files import File

log = logging.getLogger("mkdocs.hooks.site")

# Maps a file of the repository to the page of the site that shows it.
PAGES = {
    "README.md": "project.md",
    "docs/README.md": "pages.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security_promises.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
}
INSERTED = re.compile(r"^<!-- (?:(source): (\S+)|(output) of (\w+) in (\S+)|(figures) of (\S+): (.*)) -->\n(?!```)", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config):
    """Replaces the entry 'decisions/*' of the navigation by the pages of that folder."""
    folder = Path(config.docs_dir) / "decisions"
    pages = sorted(f"decisions/{page.name}" for page in folder.glob("*.md") if page.name != "README.md")
    for section in config.nav:
        for entries in section.values():
            for entry in entries if isinstance(entries, list) else []:
                if "Decisions" in entry:
                    entry["Decisions"] = [entry["Decisions"][0], *pages]
    return config


def on_files(files, config):
    root = Path(config.docs_dir).parent
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(root / source).read_text()))
    return files


def program(root, file):
    text = (root / file).read_text()
    return f"```cpp\n{text[text.index('#include'):]}```\n"


def run(root, name, file):
    """Returns the command and the output of `name`, as the page `file` shows them."""
    found = re.search(rf"(^```sh\n[^`]*^```\n)<!-- output of {name} -->\n(^```\n[^`]*^```\n)", (root / file).read_text(), re.MULTILINE)
    if not found:
        log.warning("%s does not show a command and, after <!-- output of %s -->, its output", file, name)
        return ""
    return found.group(1) + "\n" + found.group(2)


def figures(root, file, names):
    """Returns the rows of a table of `file` (case, ours, anchor: theirs, ratio) that begin with these names, as HTML."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in (root / file).read_text().splitlines()
            if line.startswith("|")]
    parts = []
    for name in names.split(", "):
        row = next((row for row in rows if row[0] == name), None)
        if not row:
            log.warning("%s has no table with a row '%s'", file, name)
            continue
        anchor, speed = row[2].rsplit(": ", 1)
        parts.append(f"<div><strong>{row[3]} ×</strong> {anchor}<small>{name}: {row[1]} against {speed}</small></div>\n")
    return f'<div class="figures">\n{"".join(parts)}</div>\n'


def inserted(markdown, root):
    """Replaces the comments that stand for parts of other files."""
    def part(match):
        source, source_file, output, name, output_file, _, figures_file, names = match.groups()
        if source:
            return program(root, source_file)
        return run(root, name, output_file) if output else figures(root, figures_file, names)

    return INSERTED.sub(part, markdown)


def on_page_markdown(markdown, page, config, files):
    docs = Path(os.path.abspath(config.docs_dir))
    root = docs.parent
    markdown = inserted(markdown, root)
    origins = {target: source for source, target in PAGES.items()}
    here = (root / origins[page.file.src_uri]).parent if page.file.src_uri in origins else \
        (docs / page.file.src_uri).parent

    def replaced(match):
        text, target, anchor = match.group(1), match.group(2), match.group(3) or ""
        if re.match(r"[a-z]+:", target):
            return match.group()
        path = Path(os.path.normpath(here / target))
        if not path.exists():
            log.warning("%s links to %s, which does not exist", page.file.src_uri, target)
            return match.group()
        up = "../" * page.file.src_uri.count("/")
        inside = str(path.relative_to(root))
        if inside in PAGES:
            return f"[{text}]({up}{PAGES[inside]}{anchor})"
        if path.is_relative_to(docs):
            return f"[{text}]({up}{path.relative_to(docs)}{anchor})"
        return text if text.startswith("`") or text in inside else f"{text} (`{inside}`)"

    parts = re.split(r"(^```.*?^```[^\n]*$)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else LINK.sub(replaced, part) for part in parts)
