"""NCCL's and RCCL's XML as a tree: encodings, and what else people save under this name."""

from __future__ import annotations

import re

from lxml import etree

from optcc.errors import InputError

WANTED = "NCCL's topology XML"
DUMP = "Set NCCL_TOPO_DUMP_FILE in a job's environment to get the topology."
MAX_ID = 2**15 - 1
"""Of a rail or plane: NCCL holds them in 16 bits (ncclNetProperties_v12_t)."""
_DECLARATION = re.compile(rb"\A\s*<\?xml\b[^>]{0,400}\?>")
"""Nothing may stand before it, not even an empty line; the encoding that it says is not what counts."""
_BOMS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))

_LOOKED_AT = 400
"""Bytes of a text whose every other one is empty where it is UTF-16 of letters and digits."""


def _is_empty(data: bytes) -> bool:
    return len(data) > 1 and not data.strip(b"\0")


def as_utf8(data: bytes) -> bytes:
    """The same text as UTF-8 without a byte order mark; `data` itself where it is that, or not what it seems to be."""
    wide = [mark for mark, place in ((b"\xff\xfe", 1), (b"\xfe\xff", 0)) if _is_empty(data[place:_LOOKED_AT:2])]
    data = wide[0] + data if wide and not data.startswith((b"\xff\xfe", b"\xfe\xff")) else data
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            try:
                return data[len(mark) :].decode(encoding).encode()
            except UnicodeError:
                return data
    return data


def parse(data: bytes, path: str) -> etree._Element:
    """The <system> of a dump. Raises InputError naming `path`, the line, and what the file is instead."""
    data = _DECLARATION.sub(lambda found: b"\n" * found[0].count(b"\n"), as_utf8(data))
    if re.match(rb"\s*(<\?xml[^>]*>\s*)?(<!--.{0,2000}?-->\s*)*<(!doctype\s+html|html)\b", data, re.I | re.S):
        hint = "The page around a file was saved; download the raw file."
        raise InputError("a web page, not a topology", where=path, expected="a root element <system>", hint=hint)
    if b"<!DOCTYPE" in data:
        hint = "lstopo's XML is hwloc's. " + DUMP if b"hwloc" in data[:1000] else "Delete it."
        raise InputError("a DOCTYPE", where=path, expected="none, as in NCCL's dumps", hint=hint)
    # The encoding is fixed, so that no declared one can hide a DOCTYPE from the search above.
    parser = etree.XMLParser(encoding="utf-8", resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
    try:
        root = etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        place = f"{path}:{error.lineno or 1}"
        cut = data.lstrip().startswith(b"<") and not data.rstrip(b"\0 \t\r\n").endswith(b">")
        whole = "The file ends in the middle: was it copied whole?" if cut else None
        raise InputError("not well-formed XML", where=place, expected=WANTED, got=error.msg, hint=whole) from None
    if root.tag != "system":
        is_graph = root.tag == "graphs"
        raise InputError(
            "an NCCL graph dump, not a topology" if is_graph else "not an NCCL topology",
            where=f"{path}:{root.sourceline}",
            expected="a root element <system>",
            got=f"<{str(root.tag)[:80]}>",
            hint=DUMP,
        )
    return root


def at(element: etree._Element, path: str) -> str:
    """``topo.xml:12: <net mlx5_0>``."""
    name = (element.get("name") or element.get("busid") or "")[:80]
    return f"{path}:{element.sourceline}: <{element.tag}{f' {name}' if name else ''}>"


def number(element: etree._Element, key: str, path: str) -> int:
    """The whole number in attribute `key`. Raises InputError where there is none."""
    text = element.get(key)
    if text is None or not re.fullmatch("[0-9]{1,9}", text):
        got = "nothing" if text is None else text[:40]
        raise InputError(f"no usable {key}", where=at(element, path), expected=f"{key} a whole number", got=got)
    return int(text)


def optional_number(element: etree._Element, key: str, path: str) -> int | None:
    """The whole number in attribute `key`; None where there is none, or NCCL's -1 for undefined. Raises InputError."""
    text = element.get(key)
    if text is None or text.strip() == "-1":
        return None
    if not re.fullmatch("[0-9]{1,5}", text) or int(text) > MAX_ID:
        raise InputError(f"not a {key}", where=at(element, path), expected=f"{key} 0 to {MAX_ID}", got=text[:40])
    return int(text)
