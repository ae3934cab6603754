"""The formats by name: write a plan, read the file back, and run what was read before anybody else does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optcc.errors import InputError
from optcc.export.choice import Chosen
from optcc.export.chunks import Chunked, deeper
from optcc.export.native import native_ring_s
from optcc.files.writing import check_place, is_plain, is_stdout, staged, write_file
from optcc.plans.plan import Plan
from optcc.simulation.simulator import simulate
from optcc.values.units import format_rate, format_seconds


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
                "segments": self.rounded.plan.recipe.segments,
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
    if format_name in ("mscclpp", "msccl"):
        return (_mscclpp if format_name == "mscclpp" else _msccl)(plan, path, segments, chunks, threadblocks)
    for option, value in (("--chunks", chunks), ("--threadblocks", threadblocks)):
        if value is not None:
            raise InputError("not for this format", where=option, expected="no such option: the format knows bytes")
    return _BYTES[format_name](plan, path, segments)


def _mscclpp(plan: Plan, path: Path, segments: int | None, chunks: int | None, threadblocks: int | None) -> Exported:
    from optcc.export import mscclpp, mscclpp_file, mscclpp_run

    chosen = mscclpp.export(plan, segments=segments, chunks=chunks, threadblocks=threadblocks)

    def prove(contents: list[bytes]) -> int:
        again = mscclpp_file.load(contents[0].decode(), str(path))
        mscclpp_file.check_limits(again)
        return mscclpp_run.run(again).operations

    operations = _publish({path: mscclpp_file.dump(chosen.program).encode()}, prove)
    sizes = f"for buffers of a multiple of {16 * chosen.rounded.chunks} bytes"
    notes = (f"{sizes}, up to {chosen.program.max_bytes}, used in place", *_nics(plan))
    return _timed(Exported("mscclpp", (path,), operations, chosen.rounded, notes), chosen, plan)


def _msccl(plan: Plan, path: Path, segments: int | None, chunks: int | None, threadblocks: int | None) -> Exported:
    from optcc.export import msccl, msccl_file, msccl_run

    chosen = msccl.export(plan, segments=segments, chunks=chunks, threadblocks=threadblocks)

    def prove(contents: list[bytes]) -> int:
        again = msccl_file.load(contents[0].decode(), str(path))
        msccl_file.check_limits(again)
        return msccl_run.run(again).operations

    operations = _publish({path: msccl_file.dump(chosen.program).encode()}, prove)
    notes = (
        f"for buffers of a multiple of {chosen.rounded.chunks} elements, used in place",
        f"needs {chosen.program.channels} channels: NCCL_MIN_NCHANNELS, if the library makes fewer",
        "which NICs a connection uses is the library's choice",
        "of the libraries that read it only msccl-executor-nccl is left, last changed in December 2024",
    )
    return _timed(Exported("msccl", (path,), operations, chosen.rounded, notes), chosen, plan)


def _timed(done: Exported, chosen: Chosen[Any], plan: Plan) -> Exported:
    """With the target's time, and a warning where the native ring would be faster."""
    native = native_ring_s(plan.cluster, plan.bound.nbytes)
    warnings: tuple[str, ...] = ()
    if chosen.seconds is None:
        warnings = ("a rank would send or receive by a NIC that is dead: this file cannot run on this cluster",)
    elif native is not None and chosen.seconds > native:
        slower = f"{chosen.seconds / native:.2f} times as long as NCCL's own ring ({format_seconds(native)})"
        warnings = (f"this file is predicted to take {slower}",)
    ideal = float(plan.bound.seconds) * chosen.rounded.simulated_ratio
    return replace(
        done, warnings=warnings, predicted_s=chosen.seconds, native_s=native, threadblocks=chosen.threadblocks,
        ideal_s=ideal,
    )  # fmt: skip


def _chakra(plan: Plan, path: Path, segments: int | None) -> Exported:
    from optcc.export import chakra, chakra_run

    made = deeper(plan, segments)
    files = {path.with_name(f"{path.name}.{rank}.et"): content for rank, content in enumerate(chakra.export(made))}

    def prove(contents: list[bytes]) -> int:
        again = [chakra.load(content, str(one)) for one, content in zip(files, contents, strict=True)]
        return chakra_run.run(again).operations

    operations = _publish(files, prove)
    ideal_s, order = _links(made)
    notes = (
        "bytes and additions are in attributes that ASTRA-sim does not read: it tells time, not sums",
        "it frees what follows a send when the message has arrived: over its Switch, twice the time of the links",
        *order,
    )
    return Exported("chakra", tuple(files), operations, None, notes, ideal_s=ideal_s)


def _goal(plan: Plan, path: Path, segments: int | None) -> Exported:
    from optcc.export import chakra_run, goal

    made = deeper(plan, segments)

    def prove(contents: list[bytes]) -> int:
        return chakra_run.run(goal.load(contents[0].decode(), str(path))).operations

    operations = _publish({path: goal.export(made).encode()}, prove)
    ideal_s, order = _links(made)
    speed = format_rate(goal.rate(plan.cluster))
    notes = (
        f"a unit of time is one byte at {speed}: LogGOPSim -G 1 -o 0 -g 0 -S {goal.LONGEST}, -L latency times that",
        *order,
    )
    return Exported("goal", (path,), operations, None, notes, ideal_s=ideal_s)


def _perfetto(plan: Plan, path: Path, segments: int | None) -> Exported:
    from optcc.export import perfetto

    def prove(contents: list[bytes]) -> int:
        return perfetto.run(perfetto.load(contents[0].decode(), str(path))).operations

    operations = _publish({path: perfetto.export(deeper(plan, segments)).encode()}, prove)
    notes = ("times are simulated, without latency; open it at ui.perfetto.dev",)
    return Exported("perfetto", (path,), operations, None, notes)


_BYTES = {"chakra": _chakra, "goal": _goal, "perfetto": _perfetto}
FORMATS = ("mscclpp", "msccl", *_BYTES)


def _publish(files: dict[Path, bytes], prove: Callable[[list[bytes]], int]) -> int:
    """Write files under other names, prove what can be read back from there, and only then give them their names."""
    if any(map(is_plain, files)):  # a pipe cannot be read back
        operations = prove([*files.values()])
        for path, content in files.items():
            write_file(path, content)
        return operations
    with staged(files) as parts:
        return prove([part.read_bytes() for part in parts])


def _nics(plan: Plan) -> tuple[str, ...]:
    if any(len(rank.nics) > 1 for rank in plan.cluster.ranks):
        return ("the executor gives each rank one NIC: the plan's shares of NICs within a rank are not in the file",)
    return ()


def _links(plan: Plan) -> tuple[float, tuple[str, ...]]:
    """Seconds if nothing but the links took time; and what the order of sends is worth, where it is worth anything."""
    schedule = plan.schedule()
    kept, lost = simulate(schedule).time_s, simulate(schedule, service="ready").time_s
    if not kept or lost <= kept * 1.005:
        return kept, ()
    return kept, (
        f"the order of sends is in the file; a simulator that drops it takes {lost / kept:.2f} times as long",
    )
