"""Adapts the pages of the repository to the site that mkdocs builds from docs/.

Pages link to files outside of docs/, which works in a checkout but not on the site. The files in PAGES become pages of
the site. Links to all others become plain text, after a check that the file exists, so that a broken link is still an
error. Two comments of docs/index.md are replaced by parts of other files, so that each part is written once:

  <!-- source: FILE -->           the program in FILE, from its first #include on
  <!-- rows of FILE: A, B, C -->  the rows of a table in FILE that begin with A, B and C, as large figures
"""

import logging
import os
import re
from pathlib import Path

from mkdocs.structure.files import File

from api_links import Reference

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
INSERTED = re.compile(r"^<!-- (?:source: (\S+)|rows of (\S+): (.*)) -->\n(?!```)", re.MULTILINE)
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)#\s]+)(#[^)\s]*)?\)")


# Sections of the navigation whose pages begin with the names of the API that they use.
GUIDES = ("Start", "Your programs", "Training", "Running a cluster")
reference = None  # Set by on_config.


def pages_in(nav, sections):
    """Returns the pages of these sections of the navigation."""
    return [page for section in nav for title, entries in section.items() if title in sections
            for entry in entries for page in entry.values()]


def on_config(config):
    """Reads the API reference, and replaces the entry 'decisions/*' of the navigation by the pages of that folder."""
    global reference
    built = Path(config.docs_dir).parent / "build/docs"
    reference = Reference(built / "api", built / "api.tag")
    folder = Path(config.docs_dir) / "decisions"
    pages = sorted(f"decisions/{page.name}" for page in folder.glob("*.md") if page.name != "README.md")
    for section in config.nav:
        if "Decisions" in section:
            section["Decisions"] = [section["Decisions"][0], *pages]
    return config


def on_files(files, config):
    root = Path(config.docs_dir).parent
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(root / source).read_text()))
    for file in sorted(reference.api.rglob("*")):
        if file.is_file():
            files.append(File(f"api/{file.relative_to(reference.api)}", str(reference.api.parent), config.site_dir, False))
    guides = [page for page in pages_in(config.nav, GUIDES) if page not in PAGES.values()]
    content = reference.page([(page, files.get_file_from_path(page).content_string) for page in guides])
    files.append(File.generated(config, "api.md", content=content))
    return files


def on_page_content(html, page, config, files):
    """Links the names in a page to their descriptions."""
    up = "../" * page.file.src_uri.count("/")
    html = reference.linked(html, up)
    is_guide = page.file.src_uri in pages_in(config.nav, GUIDES) and page.file.src_uri not in PAGES.values()
    return reference.with_names(html, page.markdown, up) if is_guide else html


def program(root, file):
    text = (root / file).read_text()
    return f"```cpp\n{text[text.index('#include'):]}```\n"


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
        source, page, names = match.groups()
        return program(root, source) if source else figures(root, page, names)

    return INSERTED.sub(part, markdown)


def on_page_markdown(markdown, page, config, files):
    docs = Path(os.path.abspath(config.docs_dir))
    root = docs.parent
    if page.file.src_uri == "api.md":
        return markdown
    markdown = inserted(markdown, root)
    origins = {target: source for source, target in PAGES.items()}
    here = (root / origins[page.file.src_uri]).parent if page.file.src_uri in origins else \
        (docs / page.file.src_uri).parent

    def replaced(match):
        label, target, anchor = match.group(1), match.group(2), match.group(3) or ""
        if re.match(r"[a-z]+:", target):
            return match.group()
        path = Path(os.path.normpath(here / target))
        if not path.exists():
            log.warning("%s links to %s, which does not exist", page.file.src_uri, target)
            return match.group()
        up = "../" * page.file.src_uri.count("/")
        inside = str(path.relative_to(root))
        if inside in PAGES:
            return f"{label}({up}{PAGES[inside]}{anchor})"
        if path.is_relative_to(docs):
            return f"{label}({up}{path.relative_to(docs)}{anchor})"
        text = label.strip("[]")
        return text if text.startswith("`") or text in inside else f"{text} (`{inside}`)"

    parts = re.split(r"(^```.*?^```[^\n]*$)", markdown, flags=re.DOTALL | re.MULTILINE)
    # Markdown for the site, unlike GitHub's, wants an empty line between a fenced and an indented block.
    return "".join(part + "\n" if part.startswith("```") else LINK.sub(replaced, part) for part in parts)
