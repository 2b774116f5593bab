#!/usr/bin/env python3
"""Filters a header for doxygen: marks plain comments as documentation, and prints the result.

`// text` on a line of its own becomes `/// text` if a declaration follows it; `int a;  // text` becomes
`int a;  ///< text`, and the lines that continue it likewise. Examples are indented further, as Markdown's code blocks are.
"""

import re
import sys
from pathlib import Path


def marked(lines):
    """Yields the lines with their comments marked."""
    trailing_column = None  # Column of the trailing comment that the next line may continue.
    for number, line in enumerate(lines):
        own = re.match(r"( *)//(?!/)(.*)", line)
        trailing = None if own else re.match(r"(.*?\S *)(?<!:)//(?!/)(.*)", line)
        if own and trailing_column == len(own.group(1)):
            yield f"{own.group(1)}///<{own.group(2)}"
            continue
        trailing_column = None
        if own:
            text = "  " + own.group(2) if own.group(2).startswith("   ") else own.group(2)
            yield f"{own.group(1)}///{text}" if is_before_declaration(lines, number) else line
        elif trailing and re.search(r"[;,{}]\s*$", trailing.group(1)) and not re.match(r"\s*}", line):
            trailing_column = len(trailing.group(1))
            yield f"{trailing.group(1)}///<{trailing.group(2)}"
        else:
            # The last enumerator has no comma.
            bare = trailing and re.match(r"\s*k\w+(?: = [^/]*)?\s*$", trailing.group(1))
            if bare:
                trailing_column = len(trailing.group(1))
            yield f"{trailing.group(1)}///<{trailing.group(2)}" if bare else line


def is_before_declaration(lines, number):
    """Returns true if the comment block around line `number` is followed by a line of code."""
    while number < len(lines) and re.match(r" *//", lines[number]):
        number += 1
    return number < len(lines) and bool(lines[number].strip()) and \
        not lines[number].lstrip().startswith(("#", "}", "namespace"))


if __name__ == "__main__":
    print("\n".join(marked(Path(sys.argv[1]).read_text().split("\n"))))
