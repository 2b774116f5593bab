"""Adapts the pages of the repository to the site that mkdocs builds from docs/.

Pages link to files outside of docs/, which works in a checkout but not on the site. The files in PAGES become pages of
the site. Links to all others become plain text, after a check that the file exists, so that a broken link is still an
error.
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
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security_promises.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
}
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


def on_page_markdown(markdown, page, config, files):
    docs = Path(os.path.abspath(config.docs_dir))
    root = docs.parent
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
