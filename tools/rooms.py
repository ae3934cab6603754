"""The rooms of the house and what they import, from the import statements: the lines of each room's ``__init__``, and
docs/pictures/house.svg.

    python tools/rooms.py [--check]

Without --check both are written anew.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "pictures" / "house.svg"
OPEN = ("errors", "__init__")
"""Modules beside the rooms that everything may import: typed errors, the version."""
ASKED = ("schedule", "theory")
"""Families ask theory for shares inside functions, and theory knows the families' values: the one loop, drawn once."""
BY, IMPORTS = "Imported by: ", "Imports: "


def modules() -> Iterator[tuple[str, Path]]:
    """(dotted name, file) of every module; `optcc.theory` and `optcc.runtime` are links to folders of their own."""
    for folder, prefix in (("optcc", "optcc"), ("theory", "optcc.theory"), ("runtime", "optcc.runtime")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            inner = path.relative_to(ROOT / folder).with_suffix("").parts
            if folder == "optcc" and inner[0] in ("theory", "runtime", "examples"):
                continue
            yield ".".join([prefix, *(p for p in inner if p != "__init__")]), path


def imports_of(source: str) -> set[str]:
    """Modules that `source` names in import statements at any depth, except under `if TYPE_CHECKING`."""
    tree, found = ast.parse(source), set()
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def rooms() -> dict[str, Path]:
    """Room -> its ``__init__``. A room is a package of `optcc` or of `optcc.runtime`, or `theory`."""
    found = {"theory": ROOT / "theory" / "__init__.py"}
    for base, prefix in ((ROOT / "optcc", ""), (ROOT / "runtime", "runtime.")):
        for init in sorted(base.glob("*/__init__.py")):
            if not init.parent.is_symlink():
                found[prefix + init.parent.name] = init
    return found


def room_of(module: str, known: dict[str, Path]) -> str:
    """The room of a dotted module; a module beside the rooms is one of its own."""
    inner = module.removeprefix("optcc.")
    parts = inner.split(".")
    for length in (2, 1):
        if ".".join(parts[:length]) in known:
            return ".".join(parts[:length])
    return ".".join(parts[:2]) if parts[0] == "runtime" else parts[0]


def graph() -> dict[str, set[str]]:
    """Room -> rooms that its modules import."""
    known, names = rooms(), {name for name, _ in modules()}
    found: dict[str, set[str]] = defaultdict(set)
    for name, path in modules():
        mine = room_of(name, known)
        for target in imports_of(path.read_text(encoding="utf-8")):
            while target not in names and "." in target:
                target = target.rpartition(".")[0]
            theirs = room_of(target, known)
            if target in names and target not in ("optcc", "optcc.runtime") and theirs not in (mine, *OPEN):
                found[mine].add(theirs)
        found[mine] |= set()
    return dict(found)


def loops(edges: dict[str, set[str]]) -> list[list[str]]:
    """Rooms that import each other, directly or by way of others, other than `ASKED`."""
    kept = {room: {to for to in others if (room, to) != ASKED} for room, others in edges.items()}
    found = []
    while kept:
        free = {room for room, others in kept.items() if not others & kept.keys()}
        if not free:
            found.append(sorted(kept))
            break
        kept = {room: others for room, others in kept.items() if room not in free}
    return found


def lines(room: str, edges: dict[str, set[str]]) -> list[str]:
    """What a room's ``__init__`` says of its neighbours."""
    users = sorted(other for other, theirs in edges.items() if room in theirs)
    known = sorted(edges.get(room, ()))
    return [f"{BY}{', '.join(users) or 'nobody'}.", f"{IMPORTS}{', '.join(known) or 'nothing'}."]


def wrapped(line: str, width: int = 118) -> str:
    """Over several lines, the later ones indented."""
    found, rest = list[str](), line
    while len(rest) > width:
        cut = rest.rfind(" ", 0, width)
        found.append(rest[:cut])
        rest = "    " + rest[cut + 1 :]
    return "\n".join([*found, rest])


def said(init: Path) -> list[str]:
    """The two lines that stand in a room's ``__init__``."""
    text = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
    joined = re.sub(r"\n {4,}", " ", text)
    return [line for line in joined.splitlines() if line.startswith((BY, IMPORTS))]


def write(init: Path, wanted: list[str]) -> None:
    """Put the two lines at the end of the docstring."""
    source = init.read_text(encoding="utf-8")
    node = ast.parse(source).body[0]
    old = "\n".join(source.split("\n")[node.lineno - 1 : node.end_lineno])
    words = re.split(rf"\n\n?(?={BY})", old.strip().removeprefix('"""').removesuffix('"""'))[0].strip()
    new = f'"""{words}\n\n' + "\n".join(map(wrapped, wanted)) + '\n"""'
    init.write_text(source.replace(old, new, 1), encoding="utf-8")


def levels(edges: dict[str, set[str]]) -> dict[str, int]:
    """Room -> its floor: one above the highest that it imports."""
    kept = {room: {to for to in others if (room, to) != ASKED} for room, others in edges.items()}
    found: dict[str, int] = {}

    def floor(room: str) -> int:
        if room not in found:
            found[room] = 1 + max((floor(other) for other in sorted(kept.get(room, ()))), default=-1)
        return found[room]

    for room in kept:
        floor(room)
    return found


def draw(edges: dict[str, set[str]]) -> None:
    """Every room on its floor, with arrows to what it imports that nothing between them does."""
    shown = {*rooms(), "api", "pytorch"}
    edges = {room: others & shown for room, others in edges.items() if room in shown}
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "optcc"
    import matplotlib.pyplot as plt

    floors = levels(edges)
    reach: dict[str, set[str]] = {}
    for room in sorted(floors, key=floors.__getitem__):
        below = [to for to in edges.get(room, ()) if (room, to) != ASKED]
        reach[room] = set(below).union(*(reach[to] for to in below if to in reach))
    rows: dict[int, list[str]] = defaultdict(list)
    for room, level in floors.items():
        rows[level].append(room)
    at: dict[str, float] = {}
    for level in sorted(rows):

        def wish(room: str) -> tuple[bool, float]:
            below = [at[to] for to in sorted(edges.get(room, ())) if to in at]
            return room.startswith("runtime"), sum(below) / len(below) if below else 0.5

        ordered = sorted(rows[level], key=wish)
        for i, room in enumerate(ordered):
            at[room] = (i + 0.5) / len(ordered) + 0.05 * (level % 3 - 1)  # rooms of near floors are not in one column
    figure, axes = plt.subplots(figsize=(11, 0.75 * (1 + max(rows))))
    for room, others in edges.items():
        direct = [to for to in sorted(others) if not any(to in reach[via] for via in others if (room, via) != ASKED)]
        for to in direct:
            if (room, to) != ASKED:
                far = floors[room] - floors[to] > 1  # bent, so that it passes beside the rooms between
                bend = f"arc3,rad={(0.18 if at[room] <= at[to] else -0.18) if far else 0}"
                arrow = {"arrowstyle": "-|>", "connectionstyle": bend, "color": "#909090", "lw": 0.7, "shrinkB": 9}
                axes.annotate("", (at[to], floors[to]), (at[room], floors[room]), arrowprops=arrow, zorder=1)
    for room, x in at.items():
        fill = "#cfe3f5" if room.startswith("runtime") else "#f7dfc0" if room == "theory" else "#e6efdc"
        axes.text(x, floors[room], room, ha="center", va="center", fontsize=8, zorder=2,
                  bbox={"boxstyle": "round,pad=0.3", "facecolor": fill, "edgecolor": "#606060", "lw": 0.6})  # fmt: skip
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.6, max(rows) + 0.6)
    axes.axis("off")
    figure.savefig(PICTURE, bbox_inches="tight", metadata={"Date": None, "Creator": None})


def main() -> None:
    edges, check = graph(), "--check" in sys.argv
    wrong = [room for room, init in rooms().items() if said(init) != lines(room, edges)]
    if check:
        sys.exit(f"python tools/rooms.py: {', '.join(wrong)}" if wrong else 0)
    for room in wrong:
        write(rooms()[room], lines(room, edges))
    draw(edges)


if __name__ == "__main__":
    main()
