"""The formats by name: write a plan, read the file back, and run what was read before anybody else does; and the same
of a file that is there: known by its content, run by the rules of its target, and what it keeps of the order of sends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from optcc.errors import InputError
from optcc.export.chunks import Chunked, deeper
from optcc.export.sends import Node, out_of_order
from optcc.files.reading import ZIP, beginning, from_first, is_stdin, json_object, read_file, shown, text_of
from optcc.files.writing import check_place, is_plain, is_stdout, staged, write_file
from optcc.plans.plan import Plan
from optcc.simulation.simulator import simulate
from optcc.values.units import format_rate, format_seconds

FORMATS = ("mscclpp", "chakra", "goal", "perfetto")
MAX_BYTES = 2**30
"""Of a file that is read; the largest that was written in tests has 30 MiB."""
TRACE = ".et"
"""How names of Chakra traces end."""


@dataclass(frozen=True)
class Exported:
    """What was written.

    files : the paths; operations : how many of the target's operations its interpreter executed
    rounded : the plan in equal chunks; None where the format knows bytes
    notes : what the format cannot say; warnings : why not to use the file
    predicted_s : seconds by the target's own clock, told from the file; None: there is none
    native_s : seconds of NCCL's ring without a file; threadblocks : of the busiest rank
    ideal_s : seconds if nothing but the links took time, for formats of which a model tells any
    """

    format: str
    files: tuple[Path, ...]
    operations: int
    rounded: Chunked | None
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    predicted_s: float | None = None
    native_s: float | None = None
    threadblocks: int | None = None
    ideal_s: float | None = None

    def as_json(self) -> dict[str, Any]:
        """For --json."""
        value: dict[str, Any] = {
            "format": self.format,
            "files": [str(path) for path in self.files],
            "operations": self.operations,
            "notes": list(self.notes),
            "warnings": list(self.warnings),
            "predicted_s": self.predicted_s,
            "native_ring_s": self.native_s,
            "ideal_s": self.ideal_s,
        }
        if self.rounded is not None:
            value |= {
                "chunks": self.rounded.chunks,
                "segments": self.rounded.plan.segments,
                "threadblocks": self.threadblocks,
                "fluid_ratio": float(self.rounded.ratio),
                "simulated_ratio": self.rounded.simulated_ratio,
            }
        return value


def write(
    plan: Plan,
    format_name: str,
    path: Path,
    *,
    segments: int | None = None,
    chunks: int | None = None,
    threadblocks: int | None = None,
) -> Exported:
    """Export `plan` to `path`, which appears only when what was written has been proved by the rules of its target.

    Raises InputError over a limit of the format and for a path that cannot be written; VerifyError if it were wrong.
    """
    if format_name not in FORMATS:
        raise InputError("unknown format", where="--format", expected=", ".join(FORMATS), got=format_name)
    if format_name == "chakra" and is_stdout(path):
        expected = "FILE: a trace for each rank, FILE.RANK.et"
        raise InputError("several files", where="-o", expected=expected, got=str(path))
    check_place(path)
    if format_name == "mscclpp":
        return _mscclpp(plan, path, segments, chunks, threadblocks)
    for option, value in (("--chunks", chunks), ("--threadblocks", threadblocks)):
        if value is not None:
            raise InputError("not for this format", where=option, expected="no such option: the format knows bytes")
    return {"chakra": _chakra, "goal": _goal, "perfetto": _perfetto}[format_name](deeper(plan, segments), path)


def _mscclpp(plan: Plan, path: Path, segments: int | None, chunks: int | None, threadblocks: int | None) -> Exported:
    from optcc.export import mscclpp
    from optcc.export.mscclpp_clock import native_ring_s
    from optcc.export.mscclpp_file import ALIGNMENT, dump

    chosen = mscclpp.export(plan, segments=segments, chunks=chunks, threadblocks=threadblocks)
    content = {path: dump(chosen.program).encode()}
    operations = _publish(content, lambda contents: _run_mscclpp(contents[0].decode(), str(path)).operations)
    native = native_ring_s(plan.cluster, plan.bound.nbytes)
    warnings: tuple[str, ...] = ()
    if chosen.seconds is None:
        warnings = ("a rank would send or receive by a NIC that is dead: this file cannot run on this cluster",)
    elif native is not None and chosen.seconds > native:
        slower = f"{chosen.seconds / native:.2f} times as long as NCCL's own ring ({format_seconds(native)})"
        warnings = (f"this file is predicted to take {slower}",)
    sizes = f"for buffers of a multiple of {ALIGNMENT * chosen.rounded.chunks} bytes"
    notes = [f"{sizes}, up to {chosen.program.max_bytes}, used in place"]
    if any(len(rank.nics) > 1 for rank in plan.cluster.ranks):
        notes.append(
            "the executor gives each rank one NIC: the plan's shares of NICs within a rank are not in the file"
        )
    return Exported(
        "mscclpp", (path,), operations, chosen.rounded, tuple(notes), warnings, chosen.seconds, native,
        chosen.threadblocks, float(plan.bound.seconds) * chosen.rounded.simulated_ratio,
    )  # fmt: skip


def _chakra(plan: Plan, path: Path) -> Exported:
    from optcc.export import chakra, sends

    files = {path.with_name(f"{path.name}.{rank}{TRACE}"): content for rank, content in enumerate(chakra.export(plan))}

    def prove(contents: list[bytes]) -> int:
        again = [chakra.load(content, str(one)) for one, content in zip(files, contents, strict=True)]
        return sends.run(again).operations

    operations = _publish(files, prove)
    ideal_s, order = _links(plan)
    notes = (
        "bytes and additions are in attributes that ASTRA-sim does not read: it tells time, not sums",
        "it frees what follows a send when the message has arrived: over its Switch, twice the time of the links",
        *order,
    )
    return Exported("chakra", tuple(files), operations, None, notes, ideal_s=ideal_s)


def _goal(plan: Plan, path: Path) -> Exported:
    from optcc.export import goal, sends

    def prove(contents: list[bytes]) -> int:
        return sends.run(goal.load(contents[0].decode(), str(path))).operations

    operations = _publish({path: goal.export(plan).encode()}, prove)
    ideal_s, order = _links(plan)
    speed = format_rate(goal.rate(plan.cluster))
    notes = (
        f"a unit of time is one byte at {speed}: LogGOPSim -G 1 -o 0 -g 0 -S {goal.LONGEST}, -L latency times that",
        *order,
    )
    return Exported("goal", (path,), operations, None, notes, ideal_s=ideal_s)


def _perfetto(plan: Plan, path: Path) -> Exported:
    from optcc.export import perfetto

    def prove(contents: list[bytes]) -> int:
        return perfetto.run(perfetto.load(contents[0].decode(), str(path))).operations

    operations = _publish({path: perfetto.export(plan).encode()}, prove)
    notes = ("times are simulated, without latency; open it at ui.perfetto.dev",)
    return Exported("perfetto", (path,), operations, None, notes)


def _publish(files: dict[Path, bytes], prove: Callable[[list[bytes]], int]) -> int:
    """Write files under other names, prove what can be read back from there, and only then give them their names."""
    if any(map(is_plain, files)):  # a pipe cannot be read back
        operations = prove([*files.values()])
        for path, content in files.items():
            write_file(path, content)
        return operations
    with staged(files) as parts:
        return prove([part.read_bytes() for part in parts])


def _links(plan: Plan) -> tuple[float, tuple[str, ...]]:
    """Seconds if nothing but the links took time; and what the order of sends is worth, where it is worth anything."""
    schedule = plan.schedule()
    kept, lost = simulate(schedule).time_s, simulate(schedule, service="ready").time_s
    if not kept or lost <= kept * 1.005:
        return kept, ()
    return kept, (
        f"the order of sends is in the file; a simulator that drops it takes {lost / kept:.2f} times as long",
    )


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
        return partial(_run_chakra, path)
    if beginning(path, len(ZIP)) == ZIP:  # a plan
        return None
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
    for content, reader in (
        (from_first("num_ranks", text), _run_goal),
        (json_object(text, "collective", "gpus"), _run_mscclpp),
    ):
        if content is not None:
            return partial(reader, content, shown(path))
    return None


def _run_mscclpp(text: str, where: str) -> Reread:
    from optcc.export import mscclpp_file, mscclpp_run

    program = mscclpp_file.load(text, where)
    mscclpp_file.check_limits(program)
    operations = mscclpp_run.run(program).operations
    unit = mscclpp_file.ALIGNMENT * program.chunks
    sums = f"{len(program.gpus)} ranks, buffers of a multiple of {unit} bytes up to {program.max_bytes}"
    blocks = max(len(gpu.threadblocks) for gpu in program.gpus)
    order = f"within each of {blocks} threadblocks, which share links as they come" if blocks > 1 else ""
    return Reread("mscclpp", operations, sums, f"kept {order}" if order else "kept: one threadblock sends", True)


def _run_chakra(path: Path) -> Reread:
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


def _run_goal(text: str, where: str) -> Reread:
    from optcc.export import goal

    return _of_nodes("goal", goal.load(text, where), "l")


def _of_nodes(name: str, files: Sequence[Sequence[Node]], label: str) -> Reread:
    from optcc.export.sends import run

    done = run(files, label)
    sums = f"{len(files)} ranks, {done.nbytes} bytes"
    loose, sends = out_of_order(files)
    if loose:
        lost = f"LOST: {loose} of {sends} sends come after no other at their port, so whatever is ready goes first"
        return Reread(name, done.operations, sums, lost, False)
    return Reread(name, done.operations, sums, "kept: each send comes after the one before it at its port", True)
