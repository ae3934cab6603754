"""The formats by name: write a plan, read the file back, and run what was read before anybody else does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optcc.errors import InputError
from optcc.export.chunks import Chunked, deeper
from optcc.outputs import check_place, is_plain, is_stdout, staged, write_file
from optcc.plans import Plan


@dataclass(frozen=True)
class Exported:
    """What was written.

    files : the paths; operations : how many of the target's operations its interpreter executed
    rounded : the plan in equal chunks; None where the format knows bytes
    notes : what the format cannot say
    """

    format: str
    files: tuple[Path, ...]
    operations: int
    rounded: Chunked | None
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """For --json."""
        value: dict[str, Any] = {
            "format": self.format,
            "files": [str(path) for path in self.files],
            "operations": self.operations,
            "notes": list(self.notes),
        }
        if self.rounded is not None:
            value |= {
                "chunks": self.rounded.chunks,
                "segments": self.rounded.plan.recipe.segments,
                "fluid_ratio": float(self.rounded.ratio),
                "simulated_ratio": self.rounded.simulated_ratio,
            }
        return value


def write(
    plan: Plan, format_name: str, path: Path, *, segments: int | None = None, chunks: int | None = None
) -> Exported:
    """Export `plan` to `path`, which appears only when what was written has been proved by the rules of its target.

    Raises InputError over a limit of the format and for a path that cannot be written; VerifyError if it were wrong.
    """
    if format_name not in _WRITERS:
        raise InputError("unknown format", where="--format", expected=", ".join(FORMATS), got=format_name)
    if format_name == "chakra" and is_stdout(path):
        expected = "FILE: a trace for each rank, FILE.RANK.et"
        raise InputError("several files", where="-o", expected=expected, got=str(path))
    check_place(path)
    if chunks is not None and format_name in ("chakra", "perfetto"):
        raise InputError("not for this format", where="--chunks", expected="no such option: the format knows bytes")
    return _WRITERS[format_name](plan, path, segments, chunks)


def _mscclpp(plan: Plan, path: Path, segments: int | None, chunks: int | None) -> Exported:
    from optcc.export import mscclpp, mscclpp_file, mscclpp_run

    program, rounded = mscclpp.export(plan, segments=segments, chunks=chunks)

    def prove(contents: list[bytes]) -> int:
        again = mscclpp_file.load(contents[0].decode(), str(path))
        mscclpp_file.check_limits(again)
        return mscclpp_run.run(again).operations

    operations = _publish({path: mscclpp_file.dump(program).encode()}, prove)
    sizes = f"for buffers of a multiple of {16 * rounded.chunks} bytes, up to {program.max_bytes}, used in place"
    notes = (sizes, *_nics(plan))
    return Exported("mscclpp", (path,), operations, rounded, notes)


def _msccl(plan: Plan, path: Path, segments: int | None, chunks: int | None) -> Exported:
    from optcc.export import msccl, msccl_file, msccl_run

    program, rounded = msccl.export(plan, segments=segments, chunks=chunks)

    def prove(contents: list[bytes]) -> int:
        again = msccl_file.load(contents[0].decode(), str(path))
        msccl_file.check_limits(again)
        return msccl_run.run(again).operations

    operations = _publish({path: msccl_file.dump(program).encode()}, prove)
    notes = (
        f"for buffers of a multiple of {rounded.chunks} elements, used in place",
        f"needs {program.channels} channels: NCCL_MIN_NCHANNELS, if the library makes fewer",
        "which NICs a connection uses is the library's choice",
    )
    return Exported("msccl", (path,), operations, rounded, notes)


def _chakra(plan: Plan, path: Path, segments: int | None, chunks: int | None) -> Exported:
    from optcc.export import chakra, chakra_run

    files = {
        path.with_name(f"{path.name}.{rank}.et"): content
        for rank, content in enumerate(chakra.export(deeper(plan, segments)))
    }

    def prove(contents: list[bytes]) -> int:
        again = [chakra.load(content, str(one)) for one, content in zip(files, contents, strict=True)]
        return chakra_run.run(again).operations

    operations = _publish(files, prove)
    notes = ("bytes and additions are in attributes that ASTRA-sim does not read: it tells time, not sums",)
    return Exported("chakra", tuple(files), operations, None, notes)


def _perfetto(plan: Plan, path: Path, segments: int | None, chunks: int | None) -> Exported:
    from optcc.export import perfetto

    def prove(contents: list[bytes]) -> int:
        return perfetto.run(perfetto.load(contents[0].decode(), str(path))).operations

    operations = _publish({path: perfetto.export(deeper(plan, segments)).encode()}, prove)
    notes = ("times are simulated, without latency; open it at ui.perfetto.dev",)
    return Exported("perfetto", (path,), operations, None, notes)


_WRITERS = {"mscclpp": _mscclpp, "msccl": _msccl, "chakra": _chakra, "perfetto": _perfetto}
FORMATS = tuple(_WRITERS)


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
