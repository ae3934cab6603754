"""Numbers that shape plans, or limit the effort of planning, stand in one file, each with its reason.

Elsewhere are limits of memory and of files, units and roundings."""

from __future__ import annotations

import ast
from pathlib import Path

from optcc.schedule import tuned

ROOT = Path(tuned.__file__).parent.parent
FILES = sorted(path for room in ("schedule", "planner") for path in (ROOT / room).rglob("*.py"))
UNITS = {
    "GOLDEN",
    "GRANULE",
    "TICKS",
    "HALF",
    "ONE",
    "UNIT",
    "LAST_UNIT",
    "PERIOD",
    "PACE",
    "PARTS",
    "ROUND",
    "FULL_HUB",
    "PLACES",
    "ONE_MORE",
    "NEVER",
    "TIES",
    "SLACK",
    "COARSE",
    "SHORTEST",
    "CLOSE",
}
"""Names of what times and bytes are counted in, of roundings, of numbers that no time reaches, and of mathematics."""
AT_MOST = 32
"""Numbers in the file: lower it when one goes."""


def numbers(text: str) -> dict[str, bool]:
    """Name of each number of a module -> whether a docstring follows. Limits (MAX_...), waits (..._S), units, 0 and 1
    are none."""
    found, body = dict[str, bool](), ast.parse(text).body
    for statement, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(statement, ast.Assign):
            continue
        told = (
            isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)
        )
        target, value = statement.targets[0], statement.value
        pairs = zip(target.elts, value.elts, strict=True) if isinstance(target, ast.Tuple) else [(target, value)]  # type: ignore[attr-defined]
        for name, number in pairs:
            text = ast.unparse(name)
            if is_number(number) and not (text.startswith("MAX_") or text.endswith("_S") or text in UNITS):
                found[text] = told
    return found


def is_number(value: ast.expr) -> bool:
    """Whether a number but 0 and 1 stands in the expression: a sum, a product, a power, a tuple or a Fraction."""
    if isinstance(value, ast.Constant):
        return type(value.value) in (int, float) and value.value not in (0, 1)
    parts: list[ast.expr] = []
    if isinstance(value, ast.BinOp):
        parts = [value.left, value.right]
    elif isinstance(value, ast.Tuple):
        parts = value.elts
    elif isinstance(value, ast.Call) and ast.unparse(value.func) in ("Fraction", "sqrt", "float"):
        parts = value.args
    return any(map(is_number, parts))


def test_numbers_are_seen() -> None:
    """The check can fail."""
    text = 'A = 3\nB, C = Fraction(1, 2), 4 * X\n"""Why."""\nD = 0\nE = "5"\n'
    text += "MAX_F = 7\nG_S = 8\nTICKS = 9\nH = (1, 2)\nI = f(3)"
    assert numbers(text) == {"A": False, "B": True, "C": True, "H": False}


def test_every_number_stands_in_one_file_with_its_reason() -> None:
    found = {path: numbers(path.read_text(encoding="utf-8")) for path in FILES}
    own = found.pop(Path(tuned.__file__))
    assert [name for name, told in own.items() if not told] == []
    assert len(own) <= AT_MOST
    assert {path.name: sorted(mine) for path, mine in found.items() if mine} == {}
