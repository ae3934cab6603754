"""Docstrings as the reference shows them (an extension of Sphinx's autodoc).

The project's docstrings are plain text with `code` and lines such as "alpha : seconds of latency". Sphinx wants
reStructuredText: code in two backticks, fields, and every other mark escaped.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

ENTRY = re.compile(r"^(?P<names>[a-z_]\w*(?:, [a-z_]\w*)*) : (?P<meaning>.*)$")
SEVERAL = re.compile(r"(?<=[^\n]); (?=[a-z_]\w*(?:, [a-z_]\w*)* : )")  # entries of one line
CODE = re.compile(r"(``.+?``|`[^`]+`)", re.DOTALL)
SECTION = re.compile(r"^(?P<title>[A-Z]\w+)\n-{3,}$", re.MULTILINE)
MARKS = re.compile(r"([*|\\])|(?<=\w)(_)(?=\W|$)")


def as_restructured(lines: list[str]) -> list[str]:
    """A docstring's lines, indentation removed, as reStructuredText."""
    done: list[str] = []
    inside = quoted = False  # the meaning of an entry, which may go on in indented lines; a block of code
    for line in SEVERAL.sub("\n", SECTION.sub(headed, inline("\n".join(lines)))).split("\n"):
        entry = ENTRY.match(line)
        if entry:
            if not inside:
                done.append("")
            # One field for all the names of a line, so that each keeps its own meaning.
            done.append(f":param {entry['names']}: {entry['meaning']}")
        else:
            if inside and line.strip() and not line.startswith(" "):
                done.append("")
            if line.startswith("    ") and not inside and not quoted and done and not done[-1].strip():
                done += ["::", ""]  # indented after an empty line: code
            done.append(line)
            quoted = line.startswith("    ") or (quoted and not line.strip())
        inside = bool(entry) or (inside and line.startswith(" "))
    return done


def headed(section: re.Match[str]) -> str:
    """Fields need no heading; examples and notes keep theirs."""
    return "" if section["title"] in ("Parameters", "Attributes") else f".. rubric:: {section['title']}\n"


def inline(text: str) -> str:
    """Code in two backticks, marks escaped outside of it; examples (>>>) and lists as they are."""
    parts = []
    for n, part in enumerate(CODE.split(text)):
        if n % 2:
            parts.append(f"``{part.strip('`')}``")
        else:
            parts.append(re.sub(r"(?m)^(\s*)\\\* ", r"\1* ", MARKS.sub(r"\\\1\2", part)))
    return "".join(parts)


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = as_restructured(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
