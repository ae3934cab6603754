"""What plan files may say, from the classes that read and write them: optcc/schema/plan-1.schema.json.

    python tools/plan_schema.py [--check]

Without --check it is written anew.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from optcc.plans.files import FORMAT, MAJOR, MINOR, PlanFields
from optcc.plans.lowered import LoweredFields
from optcc.values.json_records import Defs, RecordCodec, lines

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "optcc" / "schema" / f"plan-{MAJOR}.schema.json"
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


def main() -> None:
    """Write the file, or with --check fail where it is not what the classes say."""
    text = lines(schema(), 0) + "\n"
    if "--check" not in sys.argv[1:]:
        FILE.write_text(text, encoding="utf-8")
    elif FILE.read_text(encoding="utf-8") != text:
        sys.exit(f"{FILE.name} is not what the classes say: python tools/plan_schema.py")


if __name__ == "__main__":
    main()
