"""Where the content of a text begins: after a byte order mark, a banner, a declaration, comments."""

from __future__ import annotations

import re

_DECLARED = re.compile(r"\s*(?:<\?xml\b[^>]{0,400}\?>|<!--.*?-->)", re.S)


def from_content(text: str, start: str) -> str:
    """`text` from the first line on that begins like `start`, a regular expression; what was before it becomes empty
    lines, so that lines keep their numbers. An XML declaration and comments before the content go likewise."""
    text = text.removeprefix("\ufeff")
    found = re.compile(rf"^[ \t]*(?:<\?xml\b|<!--|{start})", re.M).search(text)
    if found is None:
        return text
    end = found.start()
    while declared := _DECLARED.match(text, end):
        end = declared.end()
    return "\n" * text.count("\n", 0, end) + text[end:].lstrip(" \t")
