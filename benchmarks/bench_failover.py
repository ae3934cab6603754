"""The matrix of faults over local wires many times over, and randomised cuts. Writes docs/bench-failover.md.

Rows run over Python's path of chunks, and over the compiled one by way of slots and from lent buffers, in turns. Row 12
is of another kind: the pure machines of the protocol over a fake transport, in random interleavings.
Exit status 1 when anything was lost or doubled, hung, or was inconclusive too often.
"""

from __future__ import annotations

import secrets
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import Any

from rich.console import Console
from rich.progress import track

from benchmarks.pages import cells_of, made_with, parser, table, write
from benchmarks.pages import row as table_row
from optcc.runtime.control.launch import Session
from optcc.runtime.flows.timeouts import Timeouts
from optcc.runtime.messages import Strike
from optcc.runtime.wires.contract import Cause
from tests import compiled_rig
from tests import test_failover_local as local
from tests.failover_cuts import KINDS, TIMEOUTS, cut
from tests.failover_matrix import ROWS
from tests.failover_rig import Open, Rig
from tests.failover_runs import InconclusiveError
from tests.protocol_interleavings import interleavings, too_rare
from tests.protocol_net import FAULTS
from tests.test_wires import connect

LENT_BYTES = 1 << 20
"""More than any buffer of the matrix."""
INTERLEAVED = 12
"""The row of the pure machines."""


@dataclass
class GroupCounts:
    """What has come of the runs of one line of the table."""

    runs: int = 0
    missed: int = 0
    wrong: int = 0
    proof: str = ""
    seconds: list[float] = field(default_factory=list)

    def one(self, what: Callable[[], Any]) -> Any:
        """Run it and count. None if it has missed or was wrong."""
        self.runs += 1
        begin = time.monotonic()
        try:
            result = what()
        except InconclusiveError:
            self.missed += 1
            return None
        except Exception:
            self.wrong += 1
            traceback.print_exc()
            return None
        self.seconds.append(time.monotonic() - begin)
        return result


def in_session(test: Callable[..., None], *args: Any) -> Callable[[], str]:
    """A test of one session, in a session of its own."""

    def run() -> str:
        with Session(local.job()) as ranks:
            test(ranks, *args)
        return ""

    return run


NIC_KINDS = ("fatal", "post", "retries", "receiver", "no data", "no acks")
PROCESSES: Mapping[str, tuple[str, str, tuple[Callable[[], Any], ...]]] = {
    "8": (
        "a process that does nothing for 2.5 deadlines",
        "its note, the run took as long, no flow moved",
        (in_session(local.test_row08_a_paused_process_is_healthy),),
    ),
    "11": (
        "two servers lose NICs at once, then a new plan",
        "notes of both strikes; the digest of the new schedule on every rank",
        (local.test_row11_all_ranks_run_the_same_plan_next,),
    ),
    "13": (
        "device fatal, failing post, receiver, one-way losses; flap and new addresses; killed; ineligible status",
        "notes of the strikes, causes of the moves; the same text on every rank",
        (
            *(in_session(local.test_row13_what_a_nic_may_do_in_processes, kind) for kind in NIC_KINDS),
            local.test_row13_an_address_that_changes_after_a_flap,
            lambda: local.test_row13_an_end_is_the_same_on_every_rank("kill", "killed by signal 9 (Killed)"),
            lambda: local.test_row13_an_end_is_the_same_on_every_rank("status", "server2/nic0: remote access error"),
        ),
    ),
    "15": (
        "a NIC at a quarter of its rate",
        "its note; the probes measure a quarter",
        (local.test_row15_a_slow_nic_is_planned_for_and_not_left,),
    ),
}


def main() -> int:
    asked = parser(__doc__, "bench-failover")
    asked.add_argument("--cuts", type=int, default=1000, help="randomised cuts")
    asked.add_argument("--times", type=int, default=20, help="runs of each variant of a row")
    asked.add_argument("--interleavings", type=int, default=100_000, help="of the pure machines, for row 12")
    asked.add_argument("--sessions", type=int, default=20, help="of four runs each, for times between processes")
    asked.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    options = asked.parse_args()
    rows = matrix(options.times, options.interleavings, options.seed)
    cuts, sound = randomised(options.cuts, options.seed)
    compiled, sound_too = over_compiled(options.times, options.cuts, options.seed)
    write(
        options.output,
        [
            "# What a collective survives, counted",
            "",
            f"Made by `make bench-failover`, seed {options.seed}: [the matrix of faults](failover.md#the-matrix).",
            "Ranks are threads unless a row says otherwise: 2 to 4 ranks with 2 to 6 emulated NICs each.",
            "Row 12 plays the pure machines; where too little fails, all of its runs are inconclusive.",
            totals(rows),
            "",
            *rows,
            "",
            *cuts,
            "",
            *processes(options.sessions),
            "",
            "## Chunks by compiled code",
            "",
            "In threads, by way of slots and from [lent buffers](failover.md#bytes-on-one-machine) in turns.",
            "",
            *compiled,
            "",
            made_with(),
        ],
    )
    return 0 if sound and sound_too and not any("**" in line for line in rows) else 1


def over_compiled(times: int, cuts: int, seed: int) -> tuple[list[str], bool]:
    """The matrix and the cuts over the compiled path, and whether nothing was lost: by way of slots and from lent
    buffers in turns."""
    Rig.engine = compiled_rig.engine  # type: ignore[method-assign]
    compiled_rig.taken.clear()
    ways = cycle((connect, partial(connect, lent_bytes=LENT_BYTES)))
    lines = rows(times, lambda: next(ways), "local, compiled")
    found = cut_runs(cuts, seed, lambda: next(ways))
    lines = [totals(lines), "", *lines, "", said_of(*found, seed)]
    lines.append(f"Compiled code handled {sum(compiled_rig.taken)} chunks in all.")
    return lines, found[1] == cuts and not found[0].wrong and not any("**" in line for line in lines)


def each(what: Iterable[Any], name: str, total: int) -> Iterable[Any]:
    return track(what, name, total=total, console=Console(stderr=True), transient=True)


def rows(times: int, way: Callable[[], Open], transport: str) -> list[str]:
    """The matrix of faults in threads. way : how wires are opened, asked before each run"""
    lines = table(["row", "fault", "transport", "runs", "inconclusive", "losses", "one proof of the fault"], [])
    for number, row in ROWS.items():
        tally = GroupCounts()
        count = 1 if number == 16 else times
        todo = [how for _ in range(count) for how in row.variants]
        for how in each(todo, f"row {number}", len(todo)):
            tally.proof = tally.one(lambda row=row, how=how: row.run(way(), **how)) or tally.proof
        lines.append(line(str(number), row.fault, transport, tally))
    return lines


def matrix(times: int, interleavings: int, seed: int) -> list[str]:
    """The table over local wires: threads, the pure machines in their place, processes."""
    lines = rows(times, lambda: connect, "local")
    place = next(i for i, line in enumerate(lines) if line.startswith(f"| {INTERLEAVED + 1} |"))
    lines.insert(place, interleaved(interleavings, seed))
    for name, (fault, proof, runs) in PROCESSES.items():
        tally = GroupCounts(proof=proof)
        todo = runs * max(1, times // 5)
        for run in each(todo, f"row {name}, processes", len(todo)):
            tally.one(run)
        lines.append(line(name, fault, "local, a process per rank", tally))
    return lines


def totals(rows: Sequence[str]) -> str:
    """The table's sums."""
    runs, missed, wrong = (sum(int(cells_of(each)[n].strip("*")) for each in rows[2:]) for n in (3, 4, 5))
    return f"{runs} runs in all, {missed} of them inconclusive, {wrong} losses."


def interleaved(count: int, seed: int) -> str:
    """Row 12: the interleavings of `count` seeds from `seed` on. Too kind a world makes all of them inconclusive."""
    tally, seen, struck = GroupCounts(), Counter[str](), 0
    for one in each(range(seed, seed + count), f"row {INTERLEAVED}", count):
        happened = tally.one(lambda one=one: interleavings(range(one, one + 1)))
        if happened is not None:
            seen += happened
            struck += any(happened[kind] for kind in FAULTS)
    rare = [] if tally.wrong else too_rare(seen, count)
    tally.missed = count if rare else 0
    tally.proof = (
        f"a wire failed in {struck} of them: {seen['moved']} failovers, {seen['moved back']} of them to a wire made "
        f"anew, {seen['severed']} flows with no way or answer left; {seen['written again']} chunks sent again, "
        f"{seen['landed late']} writes that took effect late; {seen['messages lost']} messages lost, "
        f"{seen['messages doubled']} doubled, {seen['stale messages']} stale"
    ) + (f"; too rare: {', '.join(rare)}" if rare else "")
    return line(str(INTERLEAVED), "anything at any moment: random interleavings of the pure machines", "fake", tally)


def line(row: str, fault: str, transport: str, tally: GroupCounts) -> str:
    """A row of the table; in bold what must not be: losses, and nothing but inconclusive runs."""
    losses = f"**{tally.wrong}**" if tally.wrong else "0"
    missed = f"**{tally.missed}**" if tally.missed == tally.runs else str(tally.missed)
    return table_row(row, fault, transport, tally.runs, missed, losses, tally.proof)


Cuts = tuple[GroupCounts, int, Counter[str], int, dict[Cause, list[float]], int]
"""Counts; runs that hit; what was struck; bytes sent again; seconds by cause; the last seed."""


def cut_runs(count: int, seed: int, way: Callable[[], Open]) -> Cuts:
    """`count` random cuts that hit, each at a moment of its seed."""
    tally, kinds, replayed = GroupCounts(), Counter[str](), 0
    times: dict[Cause, list[float]] = {}
    done, one = 0, seed - 1
    for _ in each(range(count), "cuts", count):
        hit = None
        while hit is None and tally.runs < 2 * count:  # those that miss say nothing, and are made up for
            one += 1
            hit = tally.one(lambda one=one: cut(way(), one))
        if hit:
            done += 1
            kinds.update(hit.kinds)
            replayed += hit.replayed
            for cause, seconds in hit.moved:
                times.setdefault(cause, []).append(seconds)
    return tally, done, kinds, replayed, times, one


def said_of(
    tally: GroupCounts,
    done: int,
    kinds: Counter[str],
    replayed: int,
    times: Mapping[Cause, list[float]],
    last: int,
    seed: int,
) -> str:
    """What has come of random cuts, in words."""
    moved = sum(map(len, times.values()))
    return "\n".join(
        (
            f"{done} runs in which the fault hit (of seeds {seed} to {last}; {tally.missed} missed, and say nothing).",
            f"{tally.wrong} have lost or doubled an element or hung.",
            f"{moved} flows moved off a NIC that was struck, {replayed / 2**20:.1f} MiB were sent again.",
            "Struck: " + ", ".join(f"{KINDS[name]} {kinds[name]}" for name in KINDS) + ".",
        )
    )


def randomised(count: int, seed: int) -> tuple[list[str], bool]:
    """The lines about the cuts; whether all is well."""
    found = cut_runs(count, seed, lambda: connect)
    tally, done, _, _, times, _ = found
    lines = [
        "## Randomised cuts",
        "",
        said_of(*found, seed),
        "",
        "## From the strike to the flow's first chunk on its new wire",
        "",
        "In the randomised cuts, where the ranks are threads that share one interpreter, and may be folding.",
        settings_of(TIMEOUTS) + " A third of the runs lose 30 % of their messages.",
        "",
        *by_means(times),
    ]
    return lines, not tally.wrong and done == count


def settings_of(timeouts: Timeouts) -> str:
    return f"Progress {timeouts.progress:g} s, grace {timeouts.grace:g} s, answer {timeouts.answer:g} s."


def by_means(times: Mapping[Cause, list[float]]) -> list[str]:
    rows = []
    for cause in Cause:
        found = sorted(times.get(cause, ()))
        if found:
            figures = (found[len(found) // 2], found[-(-9 * len(found) // 10) - 1], found[-1])
            rows.append([cause, len(found), *(f"{1000 * t:.1f} ms" for t in figures)])
    return table(["noticed by", "flows", "median", "9 of 10 within", "worst"], rows)


def processes(sessions: int) -> list[str]:
    """How long it takes when every rank is a process: strikes at four servers, one after the other."""
    times: dict[Cause, list[float]] = {}
    for _ in each(range(sessions), "times of processes", sessions):
        with Session(local.job()) as ranks:
            for server, kind in enumerate(("cut", "retries", "receiver", "hole")):
                if server:
                    ranks.adopt(local.job())
                nic = f"server{server}/nic0"
                done = ranks.run("it", [Strike(kind, nic, 0.3)])
                (strike,) = local.struck(done, nic)
                if not all(done.exact):
                    raise AssertionError(f"{kind} of {nic} has changed the result")
                for note in local.moved(done):
                    if nic in (note.nic, note.far) and note.at > strike.at:
                        times.setdefault(Cause(note.cause), []).append(note.at - strike.at)
    return [
        f"In {4 * sessions} runs with a process per rank. {settings_of(Timeouts())} No message is lost.",
        "",
        *by_means(times),
    ]


if __name__ == "__main__":
    sys.exit(main())
