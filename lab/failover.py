"""The matrix of faults over queue pairs, many times over: `make failover-verbs` runs this inside and keeps its page.

Rows and cuts are those of the tests; here every run is counted, and times from the cut to the flow's first chunk on
another wire are collected by what noticed the loss. In virtual time they repeat to the microsecond. It may be stopped,
and goes on when it is called again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab import network
from lab.allreduce import Forked
from optcc.machine.workers import processes
from optcc.runtime.wires.contract import Cause
from tests import failover_cuts, failover_runs
from tests.failover_cuts import KINDS
from tests.failover_matrix import ROWS
from tests.failover_runs import InconclusiveError
from tests.verbs import test_failover as verbs
from tests.verbs.jobs import PATIENT, Jobs


class GroupCounts:
    """Runs of one line of the table, those whose fault missed, those that lost, doubled or hung; the latest proof."""

    def __init__(self, proof: str = "") -> None:
        self.runs = self.missed = self.wrong = 0
        self.proof = proof

    def one(self, what: Callable[[], Any]) -> Any:
        """Count a run; its result, or None."""
        self.runs += 1
        network.whole()
        try:
            return what()
        except InconclusiveError:
            self.missed += 1
        except Exception:
            self.wrong += 1
            traceback.print_exc()
        return None

    def line(self, row: str, fault: str) -> str:
        """Of the table."""
        losses = f"**{self.wrong}**" if self.wrong else "0"
        return f"| {row} | {fault} | verbs | {self.runs} | {self.missed} | {losses} | {self.proof} |"


class Book:
    """What has been run, kept in a file as it grows: a run that was stopped goes on where it was.

    Of other sources or options it starts anew.
    """

    def __init__(self, path: Path, key: str) -> None:
        self._path, fresh = path, {"key": key, "lines": {}, "wrong": 0, "cuts": {}}
        kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else fresh
        self.value: dict[str, Any] = kept if kept["key"] == key else fresh

    def save(self) -> None:
        """After every line and every cut."""
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self.value), encoding="utf-8")
        new.replace(self._path)

    def line(self, name: str, make: Callable[[], tuple[GroupCounts, str]]) -> str:
        """A line of the table, made unless it is here."""
        if name not in self.value["lines"]:
            tally, self.value["lines"][name] = make()
            self.value["wrong"] += tally.wrong
            self.save()
        print(self.value["lines"][name], flush=True)
        return str(self.value["lines"][name])


def sources(*options: object) -> str:
    """A digest of everything that a run depends on."""
    digest = hashlib.sha256(repr(options).encode())
    for folder in ("runtime", "optcc", "lab", "tests"):
        for path in sorted(Path(folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def prepared() -> None:
    """NICs at the rate of the tests' jobs."""
    for nic in range(8):
        network.rate(nic, 8 * verbs.RATE)


PROCESSES: Mapping[str, tuple[str, str, list[Callable[[], None]]]] = {
    "8": (
        "a process that does nothing for 2.5 deadlines",
        "its note; the run took as long; no flow moved",
        [lambda: verbs.test_row08_a_paused_process_is_healthy(network)],
    ),
    "11": (
        "two servers lose NICs at once, then a new plan",
        "notes of both strikes; the lost NICs carry nothing in the next collective",
        [lambda: verbs.test_row11_all_ranks_run_the_same_plan_next(network)],
    ),
    "13": (
        "device fatal, post refused, queue pairs in error, one-way losses, black hole; new address; killed; a bug",
        "notes of the strikes, causes of the moves; the same text on every rank",
        [
            *(
                lambda kind=kind: verbs.test_row13_what_a_nic_may_do_in_processes(network, kind)  # type: ignore[misc]
                for kind in verbs.NIC_KINDS
            ),
            lambda: verbs.test_row13_an_address_that_changes_after_a_flap(network),
            *(
                lambda end=end: verbs.test_row13_an_end_is_the_same_on_every_rank(network, *end)  # type: ignore[misc]
                for end in verbs.ENDS
            ),
        ],
    ),
    "15": (
        "a NIC at a quarter of its rate",
        "its note; the probes measure a quarter",
        [lambda: verbs.test_row15_a_slow_nic_is_planned_for_and_not_left(network)],
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=200, help="randomised cuts that hit")
    parser.add_argument("--failovers", type=int, default=1000)
    parser.add_argument("--times", type=int, default=3, help="runs of each variant of a row")
    parser.add_argument("--compiled", action="store_true", help="chunks by compiled code: rows and cuts, as a section")
    options = parser.parse_args()
    processes.start_rank = Forked  # type: ignore[assignment]
    failover_runs.nested = verbs.leaf  # type: ignore[assignment]
    failover_cuts.TIMEOUTS = verbs.CUTS
    results = Path("/results")
    if options.compiled:
        return by_compiled_code(options, results)
    book = Book(results / "failover.json", sources(options.failovers, options.times))
    lines = head(options.times)
    for number in ROWS:
        lines.append(book.line(str(number), lambda number=number: of_row(number, options)))  # type: ignore[misc]
    for name in PROCESSES:
        lines.append(book.line(f"{name}p", lambda name=name: in_processes(name)))  # type: ignore[misc]
    cuts = list(randomised(options.cuts, book))
    wrong = book.value["wrong"] + sum("wrong" in cut for cut in cuts)
    lines += ["", *page_of(cuts), ""]
    (results / "failover.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines), flush=True)
    return 1 if wrong else 0


def by_compiled_code(options: argparse.Namespace, results: Path) -> int:
    """The section of rows and cuts whose chunks go by compiled code; exit status."""
    from optcc.runtime.compiled.choice import ChunkPath, warm
    from tests import compiled_rig
    from tests.failover_rig import Rig
    from tests.verbs.test_compiled import CASES

    warm(ChunkPath("compiled", over="verbs"))
    Rig.engine = compiled_rig.engine  # type: ignore[method-assign]
    book = Book(results / "compiled.json", sources(options.failovers, options.times))
    variants = {number: tuple(how for row, how in CASES if row == number) for number in ROWS}
    rows = [
        book.line(str(number), lambda number=number: of_row(number, options, variants))  # type: ignore[misc]
        for number in ROWS
    ]
    cuts = list(randomised(options.cuts, book))
    lines = [
        "## Chunks by compiled code",
        "",
        "The same rows and cuts, where compiled code posts and folds the chunks and polls the completions.",
        "It returns after every chunk, so that a fault strikes after any.",
        "Left out is one of row 2's variants, a window of one chunk: the acknowledgement has come when code returns.",
        f"Every other variant of a row was run {'once' if options.times == 1 else f'{options.times} times'}.",
        "",
        *TABLE,
        *rows,
        "",
        *summary_of(cuts),
        "",
    ]
    (results / "compiled.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines), flush=True)
    return 1 if book.value["wrong"] + sum("wrong" in cut for cut in cuts) else 0


TABLE = [
    "| row | fault | transport | runs | inconclusive | losses | what proved the fault (one of the runs) |",
    "|---|---|---|---|---|---|---|",
]


def head(times: int) -> list[str]:
    """Of the page."""
    heals = ", ".join(f"{how['heals'] * how['retry_s'] / verbs.GIVES_UP_S:.2f}" for how in verbs.VARIANTS[3])
    return [
        "# What a collective survives over queue pairs",
        "",
        "Made by `make failover-verbs` in the lab ([lab.md](lab.md)): links, packets and queue pairs are really"
        " disturbed, in virtual time.",
        "[failover.md](failover.md) explains the rows; row 12 concerns the pure machines only.",
        "A run without proof that its fault hit is inconclusive.",
        f"Every variant of a row was run {'once' if times == 1 else f'{times} times'}.",
        f"Row 3's flaps heal after {heals} of the time in which "
        f"the NIC's retries are over, {1000 * verbs.GIVES_UP_S:.0f} ms there.",
        "",
        *TABLE,
    ]


def of_row(
    number: int, options: argparse.Namespace, variants: Mapping[int, tuple[Mapping[str, Any], ...]] = verbs.VARIANTS
) -> tuple[GroupCounts, str]:
    """All runs of a row of the matrix."""
    tally, row = GroupCounts(), ROWS[number]
    for how in variants[number][:1] if number == 16 else variants[number] * options.times:
        given = {"failovers": options.failovers} if number == 16 else how
        jobs = Jobs(network, verbs.SETTINGS.get(number, PATIENT))
        tally.proof = tally.one(lambda jobs=jobs, given=given: row.run(jobs, **given)) or tally.proof
    return tally, tally.line(str(number), row.fault)


def in_processes(name: str) -> tuple[GroupCounts, str]:
    """All runs of what needs processes."""
    fault, proof, runs = PROCESSES[name]
    tally = GroupCounts(proof)
    for run in runs:
        tally.one(lambda run=run: (prepared(), run()))
    return tally, tally.line(name, f"{fault} (a process per rank)")


def randomised(count: int, book: Book) -> Iterator[Mapping[str, Any]]:
    """So many cuts that have hit, or done harm; those that miss are told too, and replaced."""
    seed = useful = 0
    while useful < count:
        if str(seed) not in book.value["cuts"]:
            book.value["cuts"][str(seed)] = one_cut(seed)
            book.save()
        cut = book.value["cuts"][str(seed)]
        useful += "missed" not in cut
        seed += 1
        yield cut


def one_cut(seed: int) -> dict[str, Any]:
    """What a cut has shown, as JSON."""
    tally = GroupCounts()
    hit = tally.one(lambda: failover_cuts.cut(Jobs(network), seed))
    if not hit:
        print(f"cut {seed}: {'missed' if tally.missed else 'WRONG'}", flush=True)
        return {"missed": seed} if tally.missed else {"wrong": seed}
    print(f"cut {seed}: {', '.join(hit.kinds)}", flush=True)
    return {
        "kinds": hit.kinds,
        "moved": hit.moved,
        "waited": hit.waited,
        "replayed": hit.replayed,
        "messages": hit.messages,
        "folding": hit.folding,
    }


def summary_of(cuts: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many have hit, what, and what has become of it."""
    hits = [cut for cut in cuts if "kinds" in cut]
    struck = Counter(KINDS[kind] for cut in hits for kind in cut["kinds"])
    wrong, missed = (sum(what in cut for cut in cuts) for what in ("wrong", "missed"))
    return [
        f"{len(hits) + wrong} runs in which the fault hit (of seeds 0 to {len(cuts) - 1}; "
        f"{missed} have missed, and say nothing).",
        f"{wrong} have lost or doubled an element or hung.",
        f"{sum(len(cut['moved']) for cut in hits)} flows moved off a NIC that was struck,"
        f" {sum(cut['replayed'] for cut in hits) / 1024:.0f} KiB were sent again.",
        "",
        "| struck | times |",
        "|---|---|",
        *(f"| {kind} | {count} |" for kind, count in struck.items()),
    ]


def page_of(cuts: Sequence[Mapping[str, Any]]) -> list[str]:
    """The cuts, and how long they were felt."""
    hits = [cut for cut in cuts if "kinds" in cut]
    timeouts = failover_cuts.TIMEOUTS
    calm = [cut for cut in hits if cut["messages"]]
    prompt = [cut for cut in calm if not cut["folding"]]
    two = [cut for cut in prompt if len(cut["kinds"]) > 1]
    return [
        "## Randomised cuts",
        "",
        *summary_of(cuts),
        "",
        "## From the cut to resumed",
        "",
        f"Virtual time: progress {timeouts.progress:g} s, grace {timeouts.grace:g} s, a question repeated after"
        f" {1000 * timeouts.first:g} ms at first and at most {timeouts.answer:g} s.",
        "A NIC gives up by itself only after 30 s, so that nothing hides behind that.",
        "",
        f"From the strike to the flow's first chunk on another wire, in the {len(prompt) - len(two)} runs that lose no"
        " message, fold at once, and have one NIC struck.",
        "A black hole's stated deadline is progress and grace together, "
        f"{1000 * (timeouts.progress + timeouts.grace):.0f} ms from the strike, for all flows that ever come upon it:",
        "",
        *table([(cause, s) for cut in prompt if cut not in two for cause, s in cut["moved"]]),
        "",
        f"In the {len(two)} others, in which two NICs are struck.",
        "A second black hole has a deadline of its own, which may begin when flows come upon it that had waited"
        " for the first:",
        "",
        *table([(cause, s) for cut in two for cause, s in cut["moved"]]),
        "",
        f"In the {len(calm) - len(prompt)} runs that lose no message and in which a fold takes 1 ms,"
        " whatever its size.",
        "Ranks fold all that has come before they hear of anything else:",
        "",
        *table([(cause, s) for cut in calm if cut["folding"] for cause, s in cut["moved"]]),
        "",
        "How long a flow had nothing come through before it moved, in all these:",
        "",
        *table([(cause, s) for cut in calm for cause, s in cut["waited"] if cause == Cause.PROGRESS]),
        "",
        f"From the strike, in the {len(hits) - len(calm)} runs that lose 30 % of their messages, double and delay"
        " others, by up to 50 ms.",
        "Questions, notices and probes are repeated, the first time soon:",
        "",
        *table([(cause, s) for cut in hits if not cut["messages"] for cause, s in cut["moved"]]),
    ]


def table(found: Sequence[tuple[str, float]]) -> list[str]:
    """By what noticed the loss."""
    lines = ["| noticed by | flows | median | 9 of 10 within | worst |", "|---|---|---|---|---|"]
    for cause in Cause:
        times = sorted(seconds for by, seconds in found if by == cause)
        if times:
            figures = (times[len(times) // 2], times[-(-9 * len(times) // 10) - 1], times[-1])
            lines.append(f"| {cause} | {len(times)} | " + " | ".join(f"{1000 * t:.1f} ms" for t in figures) + " |")
    return lines


if __name__ == "__main__":
    if "OPTCC_LAB" not in os.environ:
        sys.exit("only in the lab: make failover-verbs")
    sys.exit(main())
