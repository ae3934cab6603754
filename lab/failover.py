"""The matrix of faults over queue pairs, many times over: `make failover-verbs` runs this inside and keeps its page.

Rows and cuts are those of the tests; here every run is counted, and times from the cut to the flow's first chunk on
another wire are collected by what noticed the loss. In virtual time they repeat to the microsecond.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lab import network
from lab.allreduce import Forked
from optcc.runtime import crew
from optcc.runtime.wires import Cause
from tests import failover_cuts, failover_matrix
from tests.failover_matrix import ROWS, InconclusiveError
from tests.verbs import test_failover as verbs
from tests.verbs.jobs import PATIENT, Jobs


class Tally:
    """Runs, those whose fault missed, those that lost, doubled or hung; the latest proof."""

    def __init__(self) -> None:
        self.runs = self.missed = self.wrong = 0
        self.proof = ""

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
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--failovers", type=int, default=1000)
    parser.add_argument("--times", type=int, default=3, help="runs of each variant of a row")
    options = parser.parse_args()
    crew.start_rank = Forked  # type: ignore[assignment]
    failover_matrix.nested = verbs.leaf  # type: ignore[assignment]
    failover_cuts.PATIENCE = verbs.CUTS
    tallies: list[Tally] = []
    lines = [
        "# What a collective survives over queue pairs",
        "",
        "Made by `make failover-verbs` in the lab ([lab.md](lab.md)): links, packets, queue pairs are really spoilt,",
        "in virtual time. The rows are those of [failover.md](failover.md), which says what they mean; row 12 is",
        "the pure machines' own. A run without proof that its fault hit is inconclusive.",
        "",
        "| row | fault | transport | runs | inconclusive | losses | what proved the fault (one of the runs) |",
        "|---|---|---|---|---|---|---|",
    ]
    for number, row in ROWS.items():
        tally = Tally()
        tallies.append(tally)
        for how in verbs.VARIANTS[number][:1] if number == 16 else verbs.VARIANTS[number] * options.times:
            given = {"failovers": options.failovers} if number == 16 else how
            jobs = Jobs(network, verbs.SETTINGS.get(number, PATIENT))
            tally.proof = tally.one(lambda row=row, jobs=jobs, given=given: row.run(jobs, **given)) or tally.proof
        lines.append(tally.line(str(number), row.fault))
        print(lines[-1], flush=True)
    for name, (fault, proof, runs) in PROCESSES.items():
        tally = Tally()
        tally.proof = proof
        tallies.append(tally)
        for run in runs:
            tally.one(lambda run=run: (prepared(), run()))
        lines.append(tally.line(name, f"{fault} (a process per rank)"))
        print(lines[-1], flush=True)
    lines += ["", *randomised(options.cuts, tallies), ""]
    Path("/results/failover.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines), flush=True)
    return 1 if any(tally.wrong for tally in tallies) else 0


def randomised(count: int, tallies: list[Tally]) -> list[str]:
    """Cuts, and how long they were felt."""
    tally = Tally()
    tallies.append(tally)
    times: dict[Cause, list[float]] = {}
    for seed in range(count):
        hit = tally.one(lambda seed=seed: failover_cuts.cut(Jobs(network), seed))
        for cause, seconds in hit.moved if hit else ():
            times.setdefault(cause, []).append(seconds)
    patience = failover_cuts.PATIENCE
    lines = [
        "## Randomised cuts",
        "",
        f"{tally.runs} runs: {tally.wrong} have lost or doubled an element or hung, {tally.missed} have missed.",
        "",
        "## From the strike to the flow's first chunk on another wire",
        "",
        f"In these runs, in virtual time: progress {patience.progress:g} s, grace {patience.grace:g} s, answer",
        f"{patience.answer:g} s. A third of the runs lose 30 % of their letters, which makes the worst times; a NIC",
        "gives up by itself only after 30 s, so that nothing hides behind that.",
        "",
        "| noticed by | flows | median | 9 of 10 within | worst |",
        "|---|---|---|---|---|",
    ]
    for cause in Cause:
        found = sorted(times.get(cause, ()))
        if found:
            figures = (found[len(found) // 2], found[int(0.9 * (len(found) - 1))], found[-1])
            lines.append(f"| {cause} | {len(found)} | " + " | ".join(f"{1000 * t:.1f} ms" for t in figures) + " |")
    return lines


if __name__ == "__main__":
    if "OPTCC_LAB" not in os.environ:
        sys.exit("only in the lab: make failover-verbs")
    sys.exit(main())
