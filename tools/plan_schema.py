"""What plan files may say, from the classes that read and write them: optcc/schema/plan-1.schema.json, and the
parameters of every family in docs/plan-format.md.

    python tools/plan_schema.py [--check]

Without --check both are written anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optcc.plans.files import FORMAT, MAJOR, MINOR, PlanFields
from optcc.plans.lowered import LoweredFields
from optcc.values.json_records import MOST_INDEX, Defs, RecordCodec, lines

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "optcc" / "schema" / f"plan-{MAJOR}.schema.json"
PAGE = ROOT / "docs" / "plan-format.md"
BEGIN, END = "<!-- written by tools/plan_schema.py -->\n", "\n<!-- to here -->"
ABOUT = (
    "What optcc writes. A reader takes every minor version of its own major version and passes over fields it does not"
    " know; this schema knows all fields of the minor versions that it lists, and refuses others. docs/plan-format.md"
    ' has the policy. Numbers are whole; exact ones that are not are text such as "3/5". Bytes, seconds, bytes per'
    " second. Ranks, servers, ports and so on are numbered from 0."
)
ID = (
    "The first 16 hex digits of SHA-256 over the canonical JSON (names sorted, no spaces, ASCII) of the other fields"
    " without lowered"
)


def schema() -> dict[str, Any]:
    """The schema as a JSON value."""
    defs: Defs = {}
    plan = RecordCodec(PlanFields).members_schema(defs)
    lowered = RecordCodec(LoweredFields).schema(defs)
    defs["LoweredFields"] |= {
        "if": {"properties": {"depth": {"const": "transfers"}}, "required": ["depth"]},
        "then": {"required": ["transfers"]},
        "else": {"properties": {"transfers": False}},
    }
    head = {
        "format": {"const": FORMAT},
        "version": {"description": "MAJOR.MINOR of this format", "enum": [f"{MAJOR}.{m}" for m in range(MINOR + 1)]},
        "plan_id": {"description": ID, "type": "string", "pattern": "^[0-9a-f]{16}$"},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:optcc:plan:{MAJOR}",
        "title": f"An optcc plan, version {MAJOR}",
        "description": ABOUT,
        **plan,
        "required": [*head, *plan["required"]],
        "properties": {**head, **plan["properties"], "lowered": lowered},
        "$defs": defs,
    }


def parameters(whole: dict[str, Any]) -> str:
    """Tables of the families' parameters in Markdown, from the schema of plans."""
    text = ""
    for case in whole["allOf"]:
        family = case["if"]["properties"]["family"]["const"]
        rows = _rows(case["then"]["properties"]["recipe"], whole["$defs"], "")
        text += "\n".join([f"\n**{family}**\n", "| parameter | values | what |", "|---|---|---|", *rows, ""])
    return text


def _rows(part: dict[str, Any], defs: Defs, inside: str) -> Iterator[str]:
    """A row for every member of a record, and after it those of the records that it consists of."""
    record = _record(part, defs)
    for name, inner in record.get("properties", {}).items():
        absent = "" if name in record["required"] else ", or not there"
        yield f"| {inside}`{name}` | {_values(inner, defs)}{absent} | {inner.get('description', '')} |"
        yield from _rows(inner.get("items", inner), defs, f"{inside}`{name}` ")


def _record(part: dict[str, Any], defs: Defs) -> dict[str, Any]:
    return defs[part["$ref"].rpartition("/")[2]] if "$ref" in part else part


def _values(part: dict[str, Any], defs: Defs) -> str:
    """What a member may be, in a few words."""
    kind = _record(part, defs)
    if part.get("$ref") == "#/$defs/exact":
        return "fraction"
    if "anyOf" in kind:
        return ", or ".join(_values(each, defs) for each in kind["anyOf"])
    if "enum" in kind:
        return ", ".join(f"`{word}`" for word in kind["enum"])
    if kind["type"] == "integer":
        most = kind.get("maximum", MOST_INDEX)
        return f"{kind['minimum']} or more" if most == MOST_INDEX else f"{kind['minimum']} to {most}"
    if "prefixItems" in kind:
        return f"pair ({'; '.join(_values(item, defs) for item in kind['prefixItems'])})"
    if kind["type"] == "array":
        return f"list ({_values(kind['items'], defs)})"
    return {"string": "text", "boolean": "true or false"}.get(kind["type"], kind["type"])


def files() -> dict[Path, str]:
    """What there should be in each file."""
    whole = schema()
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return {FILE: lines(whole, 0) + "\n", PAGE: f"{before}{BEGIN}{parameters(whole)}{END}{after}"}


def main() -> None:
    """Write the files, or with --check fail where one is not what the classes say."""
    for path, text in files().items():
        if "--check" not in sys.argv[1:]:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path.name} is not what the classes say: python tools/plan_schema.py")


if __name__ == "__main__":
    main()
