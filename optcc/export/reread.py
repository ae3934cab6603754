"""An exported file, known by how it begins: run by the rules of its target, and what it keeps of the order of sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from optcc.errors import InputError
from optcc.export.nodes import Node, out_of_order
from optcc.files.reading import beginning, is_stdin, read_file

MAX_BYTES = 2**30
"""Of a file; the largest that was written in tests has 30 MiB."""
HEAD = 4096
TRACE = ".et"
"""How names of Chakra traces end."""


@dataclass(frozen=True)
class Reread:
    """What a file is. operations : that its target's interpreter executed; order : what its target does with the
    plan's order of sends; kept : whether it keeps it"""

    format: str
    operations: int
    order: str
    kept: bool


def reader_of(path: Path) -> Callable[[Path], Reread] | None:
    """What reads and runs an exported file, for Chakra any one rank's; None where `path` does not begin like one.

    It raises InputError for what cannot be read, VerifyError for a file that is wrong by the rules of its target.
    """
    if is_stdin(path):
        return None
    head = beginning(path, HEAD).lstrip()
    if path.name.endswith(TRACE):
        return _chakra
    if head.startswith(b"num_ranks"):
        return _goal
    if head.startswith(b"<algo"):
        return _msccl
    if head.startswith(b"{") and b'"collective"' in head:
        return _mscclpp
    return None


def _text(path: Path, what: str) -> str:
    data = read_file(path, MAX_BYTES, what=what, expected=what)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InputError("cannot be read", where=str(path), expected=what, got="not text") from None


def _mscclpp(path: Path) -> Reread:
    from optcc.export import mscclpp_file, mscclpp_run

    program = mscclpp_file.load(_text(path, "an execution plan for MSCCL++"), str(path))
    mscclpp_file.check_limits(program)
    operations = mscclpp_run.run(program).operations
    return _in_blocks("mscclpp", operations, max(len(gpu.threadblocks) for gpu in program.gpus))


def _msccl(path: Path) -> Reread:
    from optcc.export import msccl_file, msccl_run

    program = msccl_file.load(_text(path, "an MSCCL algorithm"), str(path))
    msccl_file.check_limits(program)
    operations = msccl_run.run(program).operations
    sends = [sum(block.send >= 0 for block in blocks) for blocks in program.gpus]
    return _in_blocks("msccl", operations, max(sends))


def _in_blocks(name: str, operations: int, blocks: int) -> Reread:
    if blocks == 1:
        return Reread(name, operations, "kept: one threadblock sends", True)
    return Reread(name, operations, f"kept within each of {blocks} threadblocks, which share links as they come", True)


def _chakra(path: Path) -> Reread:
    from optcc.export import chakra

    prefix = path.name.removesuffix(TRACE).rpartition(".")[0]
    numbers = [p.name[len(prefix) + 1 : -len(TRACE)] for p in path.parent.glob(f"*{TRACE}")
               if p.name.startswith(f"{prefix}.")]  # fmt: skip
    ranks = sorted(int(number) for number in numbers if number.isdecimal())
    if not prefix or ranks != list(range(len(ranks))) or not ranks:
        expected = "traces of all ranks beside each other, FILE.0.et, FILE.1.et, ..."
        raise InputError("traces are missing", where=str(path), expected=expected, got=f"ranks {ranks}"[:200])
    files = []
    for rank in ranks:
        one = path.with_name(f"{prefix}.{rank}{TRACE}")
        files.append(chakra.load(read_file(one, MAX_BYTES, what="trace", expected="a Chakra trace"), str(one)))
    return _of_nodes("chakra", files, "node ")


def _goal(path: Path) -> Reread:
    from optcc.export import goal

    return _of_nodes("goal", goal.load(_text(path, "a GOAL schedule"), str(path)), "l")


def _of_nodes(name: str, files: Sequence[Sequence[Node]], label: str) -> Reread:
    from optcc.export.chakra_run import run

    operations = run(files, label).operations
    loose, sends = out_of_order(files)
    if loose:
        lost = f"LOST: {loose} of {sends} sends come after no other at their port, so whatever is ready goes first"
        return Reread(name, operations, lost, False)
    return Reread(name, operations, "kept: each send comes after the one before it at its port", True)
