"""An exported file, known by its content: run by the rules of its target, and what it keeps of the order of sends."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from optcc.errors import InputError
from optcc.export.nodes import Node, out_of_order
from optcc.files.reading import beginning, from_first, is_stdin, json_object, read_file, shown, text_of

MAX_BYTES = 2**30
"""Of a file; the largest that was written in tests has 30 MiB."""
TRACE = ".et"
"""How names of Chakra traces end."""
_TRACE_BEGINS = re.compile(rb"[\x03-\x20]\x0a[\x01-\x1e]\d+\.\d+")
"""A message of a few bytes whose first field is a version."""


@dataclass(frozen=True)
class Reread:
    """What a file is.

    operations : that its target's interpreter executed; sums : what they sum, as far as the file says it
    order : what its target does with the plan's order of sends; kept : whether it keeps it
    """

    format: str
    operations: int
    sums: str
    order: str
    kept: bool


def reader_of(path: Path) -> Callable[[], Reread] | None:
    """What reads and runs an exported file, for Chakra any one rank's; None where `path` has nothing of one.

    It raises InputError for what cannot be read, VerifyError for a file that is wrong by the rules of its target.
    """
    if path.name.endswith(TRACE):
        return partial(_chakra, path)
    data = beginning(path, MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InputError("too large", where=shown(path), expected=f"at most {MAX_BYTES} bytes", got="more")
    if data.startswith(b"\x1f\x8b"):
        hint = f"gunzip -c {'FILE' if is_stdin(path) else path} | optcc verify -"
        raise InputError("compressed by gzip", where=shown(path), expected="what is in it", got="gzip", hint=hint)
    if _TRACE_BEGINS.match(data):
        expected = f"a file whose name ends in .RANK{TRACE}, beside those of the other ranks"
        raise InputError("one rank's Chakra trace by itself", where=shown(path), expected=expected, got="another name")
    try:
        text = text_of(data)
    except UnicodeDecodeError:
        return None
    if json_object(text, "format", "plan_id") is not None:  # a plan, whose certificate may name a collective, too
        return None
    for content, reader in (
        (from_first("num_ranks", text), _goal),
        (from_first("<algo", text), _msccl),
        (json_object(text, "collective", "gpus"), _mscclpp),
    ):
        if content is not None:
            return partial(reader, content, shown(path))
    return None


def _mscclpp(text: str, where: str) -> Reread:
    from optcc.export import mscclpp_fields, mscclpp_file, mscclpp_run

    program = mscclpp_file.load(text, where)
    mscclpp_file.check_limits(program)
    operations = mscclpp_run.run(program).operations
    unit = mscclpp_fields.ALIGNMENT * program.chunks
    sums = f"{len(program.gpus)} ranks, buffers of a multiple of {unit} bytes up to {program.max_bytes}"
    return _in_blocks("mscclpp", operations, sums, max(len(gpu.threadblocks) for gpu in program.gpus))


def _msccl(text: str, where: str) -> Reread:
    from optcc.export import msccl_file, msccl_run

    program = msccl_file.load(text, where)
    msccl_file.check_limits(program)
    operations = msccl_run.run(program).operations
    sends = [sum(block.send >= 0 for block in blocks) for blocks in program.gpus]
    return _in_blocks("msccl", operations, f"{len(program.gpus)} ranks, {program.chunks} chunks", max(sends))


def _in_blocks(name: str, operations: int, sums: str, blocks: int) -> Reread:
    if blocks == 1:
        return Reread(name, operations, sums, "kept: one threadblock sends", True)
    return Reread(
        name, operations, sums, f"kept within each of {blocks} threadblocks, which share links as they come", True
    )


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


def _goal(text: str, where: str) -> Reread:
    from optcc.export import goal

    return _of_nodes("goal", goal.load(text, where), "l")


def _of_nodes(name: str, files: Sequence[Sequence[Node]], label: str) -> Reread:
    from optcc.export.chakra_run import run

    done = run(files, label)
    sums = f"{len(files)} ranks, {done.nbytes} bytes"
    loose, sends = out_of_order(files)
    if loose:
        lost = f"LOST: {loose} of {sends} sends come after no other at their port, so whatever is ready goes first"
        return Reread(name, done.operations, sums, lost, False)
    return Reread(name, done.operations, sums, "kept: each send comes after the one before it at its port", True)
