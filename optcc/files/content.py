"""What a text file is, told by its content: marks of an encoding, comments, declarations and banners stand before it.

What is taken away leaves its line ends, so that messages about a line name the line of the file.
"""

from __future__ import annotations

import codecs
import json
import re

MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
MOST_TRIES = 64
"""Lines that begin with a brace and are looked at for a JSON object."""
HEAD = 4096
"""Characters in which an object of many lines says what it is."""
_COMMENT = re.compile(r"<!--.*?-->|/\*.*?\*/", re.DOTALL)
_BRACE = re.compile(r'^[ \t]*\{(?=\s*")', re.MULTILINE)


def text_of(data: bytes) -> str:
    """The text, in UTF-8, or as its mark says. Raises UnicodeDecodeError."""
    for mark, encoding in MARKS:
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding)
    return data.decode()


def from_first(pattern: str, text: str) -> str | None:
    """The text from the line on in which `pattern` stands first, outside of comments; None where it does not."""
    bare = _COMMENT.sub(lambda found: "\n" * found[0].count("\n"), text)
    found = re.search(rf"^[ \t]*(?:<[?!][^>]*>\s*)*({pattern})", bare, re.MULTILINE)
    return None if found is None else _after(bare, found.start(1))


def json_object(text: str, *names: str) -> str | None:
    """The text from the first JSON object on that has these names; None where there is none.

    Where an object cannot be parsed that has them somewhere, from there on: its reader says what is wrong with it.
    """
    if not all(f'"{name}"' in text for name in names):
        return None
    starts = [found.end() - 1 for found, _ in zip(_BRACE.finditer(text), range(MOST_TRIES), strict=False)]
    end = 0
    for start in (each for each in starts if each >= end):
        if not _is_line(text, start) and all(f'"{name}"' in text[start : start + HEAD] for name in names):
            return _after(text, start)
        try:
            found, end = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if set(names) <= found.keys():
            return _after(text, start)
    return _after(text, starts[0]) if starts else None


def _is_line(text: str, start: int) -> bool:
    """Whether the line may be an object of its own, as in a log."""
    return text[start : text.find("\n", start)].rstrip().endswith("}")


def _after(text: str, start: int) -> str:
    return "\n" * text.count("\n", 0, start) + text[start:]
