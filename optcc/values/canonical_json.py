"""JSON as plan files have it: whole numbers only, no name twice, one canonical form to hash, another one to read."""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any

MOST_MEMBERS = 128
"""Of one JSON object, as in the reader in C, which looks for a name twice among them."""
MAX_DEPTH = 32
"""Of arrays and objects in each other, as in the reader in C."""
MAX_BYTES = 64 * 2**20
"""Of a plan file. With `MAX_PARTS` it bounds the memory that reading one takes: a number takes 36 bytes for 4 or more
in the file, with its comma; an array or object takes up to 240, however short it is in the file."""
MAX_PARTS = 2_000_000
"""Arrays and objects in one plan file: a layout of 128 servers with 8 NICs, all to all, has half a million."""
WIDE = 110


def parse(text: str, *, points: bool = False) -> Any:
    """The JSON value in `text`; `points`: numbers may have a decimal point.

    ValueError for what readers might take differently, or what takes too much memory.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    if text.count("[") + text.count("{") > MAX_PARTS:
        raise ValueError(f"more than {MAX_PARTS} arrays and objects")
    try:
        raw = json.loads(
            text, object_pairs_hook=_members, parse_float=float if points else _no_float, parse_constant=_no_float
        )
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except ValueError as error:
        if "set_int_max_str_digits" in str(error):
            raise ValueError("a number of more than 4300 digits") from None
        raise
    _check_depth(raw)
    canonical(raw, ascii_only=False).encode()  # half a surrogate pair is no text
    return raw


_TOO_DEEP = f"nested deeper than {MAX_DEPTH}"


def _check_depth(raw: Any) -> None:
    """Raise ValueError for what is nested deeper than `MAX_DEPTH`; looks at one depth after the other."""
    level: list[Any] = [raw] if isinstance(raw, (dict, list)) else []
    for _ in range(MAX_DEPTH):
        inside = (value.values() if isinstance(value, dict) else value for value in level)
        level = [part for parts in inside for part in parts if isinstance(part, (dict, list))]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs) or len(pairs) > MOST_MEMBERS:
        raise ValueError(f"an object with a name twice, or more than {MOST_MEMBERS} names")
    return made


def _no_float(text: str) -> Any:
    raise ValueError(
        f'{text[:60]}: a number that readers take differently: whole numbers, and exact ones as text such as "3/5"'
    )


def canonical(value: Any, *, ascii_only: bool = True) -> str:
    """One text for one value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=ascii_only)


def agree(known: Any, said: Any, *, strictly: bool) -> bool:
    """Whether a file says what we would write; unless `strictly`, it may have fields that we do not know."""
    if strictly:
        return canonical(known) == canonical(said)
    if isinstance(known, dict) and isinstance(said, dict):
        return all(name in said and agree(value, said[name], strictly=False) for name, value in known.items())
    if isinstance(known, list) and isinstance(said, list):
        if not any(isinstance(value, (dict, list)) for value in known):
            return canonical(known) == canonical(said)
        return len(known) == len(said) and all(agree(a, b, strictly=False) for a, b in zip(known, said, strict=True))
    return canonical(known) == canonical(said)


def lines(value: Any, depth: int) -> str:
    """JSON for people and for diffs: what is short, and a list of numbers of any length, on one line."""
    if isinstance(value, dict):
        parts = [f"{_quoted(name)}: {lines(part, depth + 1)}" for name, part in value.items()]
        left, right = "{}"
    elif isinstance(value, list) and any(isinstance(part, (dict, list)) for part in value):
        parts = [lines(part, depth + 1) for part in value]
        left, right = "[]"
    else:
        return _quoted(value) if isinstance(value, str) else json.dumps(value)
    short = f"{left}{', '.join(parts)}{right}"
    if len(short) + depth <= WIDE and "\n" not in short:
        return short
    inner = "\n" + " " * (depth + 1)
    return f"{left}{inner}{f',{inner}'.join(parts)}{inner[:-1]}{right}"
