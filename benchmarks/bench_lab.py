"""Achieved time over bound on real queue pairs, in the lab: soft-RoCE NICs shaped to a rate, in virtual time.

Plans are made here, by the whole planner; `lab/allreduce.py` runs them inside, where only numpy is. Writes
docs/bench-lab.md. Exit status 1 when a result is wrong, a limit is missed, or packets had to be sent again.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import optcc
from benchmarks.pages import parser, write
from optcc.errors import InputError
from optcc.planner.search import Candidate, candidate_families, try_depths
from optcc.plans.plan import Plan
from optcc.schedule import Schedule
from optcc.schedule.recipe import Costs, Recipe
from optcc.simulation.simulator import Service, simulate
from optcc.values.bound import Bound
from optcc.values.cluster import Cluster, Nic, Server
from optcc.values.units import format_seconds, format_size

NICS = 2  # of a server
PACKET = 4096 + 58
HEADERS = Fraction(PACKET, 4096)
"""Bytes on the wire for each of payload: Ethernet, IPv4, UDP, transport header and checksum around 4096 bytes."""

CHUNK_BYTES = 300
"""What a piece of a transfer costs a NIC besides, about: a head, and the other way acknowledgements, as datagrams."""

PROCESSOR_S = Fraction(25, 10**7)
"""And what each piece of a transfer costs the lab's one processor, on both ends together. All ranks share it, and a
look at the clock takes 256 ns. Measured before the native engine: schedules with a piece per 2.7 us and fewer meet
their prediction, with one per 1.6 to 2.3 us they are up to 3 % over it, per 1.2 us 11 %."""
SMALL, FEW = 1 << 14, 0.2
"""Nor does the processor keep up with bursts of small pieces: timetables whose first rounds are made of them, over this
part of all, were 2.4 to 4 % over their prediction."""

FINALISTS = 8
"""Of so many candidates, the first when receivers serve stripes, the first is taken when they serve packets."""

NEAR = 1.005
"""Of finalists this near to the fastest, the one is taken that loses least where NICs serve what is ready first: a real
NIC has several chunks, of several queue pairs, and their order is its own."""

HALF, QUARTERS = Fraction(0), Fraction(1, 2)
"""What is left of one of the two NICs of a server, whose rate is then 1/2 or 3/4."""


@dataclass(frozen=True)
class Case:
    """`left`: of the first NIC of each degraded server, by server."""

    ranks: int
    gbit: int
    left: Mapping[int, Fraction]
    limit: float | None = None
    nbytes: int = 16_000_000

    @property
    def name(self) -> str:
        """For people."""
        rates = [str((1 + left) / 2) for left in self.left.values()]
        return f"{self.ranks} ranks, {self.gbit} Gb/s, " + (", ".join(rates) or "healthy")

    @property
    def rate(self) -> Fraction:
        """Of a NIC, bytes per second."""
        return Fraction(self.gbit * 10**9, 8)

    @property
    def cluster(self) -> Cluster:
        """NICs are called as the lab's devices; NICs of rank r are the lab's number 2r and 2r + 1."""
        servers = tuple(
            Server(f"server{r}", tuple(Nic(f"rxe{r * NICS + g}", self.rate, self.rate) for g in range(NICS)))
            for r in range(self.ranks)
        )
        cluster = Cluster(servers)
        for server, left in self.left.items():
            cluster = cluster.degrade(f"server{server}/rxe{server * NICS}", left)
        return cluster

    @property
    def nic_rates(self) -> list[int]:
        """By lab NIC, bits per second. One that is dead is in no plan, so its rate does not matter."""
        rates = [self.gbit * 10**9] * (self.ranks * NICS)
        for server, left in self.left.items():
            rates[server * NICS] = int(left * rates[server * NICS]) or rates[server * NICS]
        return rates

    @property
    def costs(self) -> dict[str, Fraction]:
        """What stands for the lab in the simulator: the latency of a packet that the switch stores, a chunk's costs."""
        return {"alpha": PACKET / self.rate, "per_chunk": CHUNK_BYTES / self.rate}


@dataclass
class Outcome:
    """A case with its plans, and what became of them."""

    case: Case
    plans: Mapping[str, Plan] = field(init=False)
    runs: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    def __post_init__(self) -> None:
        cluster, unit = self.case.cluster, 64 * self.case.ranks
        bound = optcc.lower_bound(cluster, self.case.nbytes // unit * unit)
        plan = Plan(cluster, bound, fastest(cluster, bound, self.case.costs))
        self.plans = {"optcc": plan, "ring": plan.baseline("ring")}

    @property
    def key(self) -> str:
        """Names the case and the content of its plans."""
        return " ".join([self.case.name, *(plan.plan_id for plan in self.plans.values())])

    @property
    def bound_s(self) -> float:
        """The least time, headers included."""
        return float(self.plans["optcc"].bound.seconds * HEADERS)

    def simulated(self, name: str) -> float:
        """Over the bound, as the simulator says with the lab's costs."""
        seconds = simulated_s(self.plans[name].schedule(), self.case.costs)
        return seconds / float(self.plans["optcc"].bound.seconds)

    def achieved(self, name: str) -> float:
        """Over the bound, in the lab."""
        return float(median(self.runs[name]["seconds"])) / self.bound_s

    def misses(self) -> list[str]:
        """What is not as it should be."""
        if self.error:
            return [f"{self.case.name}: {self.error}"]
        found = [f"{self.case.name}: {name} is WRONG" for name, run in self.runs.items() if not run["exact"]]
        limit = self.case.limit
        if limit and self.achieved("optcc") > limit:
            found.append(f"{self.case.name}: {self.achieved('optcc'):.4f} of the bound, limit {limit}")
        for name, run in self.runs.items():
            found += [f"{self.case.name}: {name} had {count} {what}" for what, count in run["troubles"].items()]
        return found


def fastest(cluster: Cluster, bound: Bound, costs: Mapping[str, Fraction]) -> Recipe:
    """The fastest of all families and depths with which the lab's processor keeps up; costly families too."""
    found: list[Candidate] = []
    for offer in candidate_families(cluster, bound, **costs):
        with contextlib.suppress(InputError):  # no recipe of this family here
            found += try_depths(offer, cluster, bound.nbytes, Costs(**costs))
    found.sort(key=lambda candidate: candidate.time_s)
    lowered = ((c.recipe, c.recipe.lower(cluster, bound.nbytes)) for c in found)
    finalists = [*islice((f for f in lowered if kept_up_with(f[1], bound)), FINALISTS)]
    times = [simulated_s(schedule, costs) for _, schedule in finalists]
    near = [recipe for recipe, time in zip(finalists, times, strict=True) if time <= NEAR * min(times)]
    return min(near, key=lambda finalist: simulated_s(finalist[1], costs, service="ready"))[0]


def simulated_s(schedule: Schedule, costs: Mapping[str, Fraction], service: Service = "plan") -> float:
    """Seconds of virtual time. The lab's switch sends packets on as they come."""
    alpha, per_chunk = costs["alpha"], costs["per_chunk"]
    return simulate(schedule, alpha=alpha, per_chunk=per_chunk, receivers="packets", service=service).time_s


def kept_up_with(schedule: Schedule, bound: Bound) -> bool:
    """Whether the processor has time for all pieces of transfers, and few of them are small."""
    lanes = np.array([len(route.lanes) for route in schedule.routes])[schedule.route]
    small = schedule.length < SMALL * lanes
    return lanes.sum() * PROCESSOR_S <= bound.seconds and lanes[small].sum() <= FEW * lanes.sum()


CASES = [
    Case(4, 10, {}),
    *(Case(4, 10, {0: left}, 1.03) for left in (HALF, QUARTERS)),
    *(Case(4, 25, {0: left}, 1.03, 32_000_000) for left in (HALF, QUARTERS)),
    *(Case(4, 100, {0: left}, None, 64_000_000) for left in (HALF, QUARTERS)),
    *(Case(8, 10, {0: left, 1: left}, 1.05) for left in (HALF, QUARTERS)),
]


def main() -> int:
    asked = parser(__doc__, "bench-lab")
    asked.add_argument("--share", type=Path, default=Path("out/lab"), help="where plans and results are left")
    asked.add_argument("--repeat", type=int, default=3, help="timed runs of each; now and then one is 1 %% slower")
    asked.add_argument("--only", default="", help="cases whose name contains this; writes no page")
    asked.add_argument("--limit", type=int, default=2400, help="seconds for the whole lab")
    asked.add_argument("--resume", action="store_true", help="keep what an earlier run of the same plans has left")
    options = asked.parse_args()
    outcomes = [Outcome(case) for case in CASES if options.only in case.name]
    known = options.share / "known.json"
    done = json.loads(known.read_text(encoding="utf-8")) if options.resume and known.exists() else {}
    for outcome in outcomes:
        outcome.runs = done.get(outcome.key, {})
    if todo := [outcome for outcome in outcomes if not outcome.runs]:
        run(todo, options.share, options.repeat, options.limit)
    done |= {outcome.key: outcome.runs for outcome in outcomes if outcome.runs}
    known.write_text(json.dumps(done), encoding="utf-8")
    text = page(outcomes)
    if options.only:
        print(text)
    else:
        write(options.output, text, lambda c: bool(c["limit"]))
    return 1 if any(outcome.misses() for outcome in outcomes) else 0


def run(outcomes: Sequence[Outcome], share: Path, repeat: int, limit: int) -> None:
    """All cases in one lab; fills in `runs` or `error`."""
    share.mkdir(parents=True, exist_ok=True)
    job = []
    for i, outcome in enumerate(outcomes):
        files = {name: f"{i}-{name}.plan" for name in outcome.plans}
        for name, plan in outcome.plans.items():
            (share / files[name]).write_bytes(plan.to_bytes())
        job.append({"rates": outcome.case.nic_rates, "plans": files, "repeat": repeat})
    (share / "job.json").write_text(json.dumps(job), encoding="utf-8")
    results = share / "job.out.json"
    results.unlink(missing_ok=True)
    nics = max(outcome.case.ranks * NICS for outcome in outcomes)
    command = [
        "lab/run.sh",
        "--memory",
        "3G",
        "--nics",
        str(nics),
        "--limit",
        str(limit),
        "--results",
        str(share),
        "--",
    ]
    status = subprocess.run([*command, "python3", "-m", "lab.allreduce", "job.json"], check=False).returncode
    found = json.loads(results.read_text(encoding="utf-8")) if results.exists() else []
    for i, outcome in enumerate(outcomes):
        if i < len(found) and "error" not in found[i]:
            outcome.runs = found[i]
        else:
            outcome.error = found[i]["error"] if i < len(found) else f"the lab ended with status {status} before it"


def page(outcomes: Sequence[Outcome]) -> str:
    """The document."""
    misses = [miss for outcome in outcomes for miss in outcome.misses()]
    lines = [
        "# Achieved time over bound in the lab",
        "",
        "Made by `make bench-lab`: real bytes over real queue pairs between shaped soft-RoCE NICs.",
        "Each rank is a process with two NICs; the data is float32.",
        "Time is the lab's virtual time ([lab.md](lab.md)), which repeats to the microsecond.",
        "The first NIC of each degraded server is dead (the server keeps 1/2) or has half its rate (3/4).",
        "The bound counts packet headers: it is multiplied by 4154/4096.",
        "One run warms up; times are medians of the next three.",
        "",
        "Family and segments are the fastest of all in the simulator, with costs that stand for the lab: the",
        "latency of a",
        f"packet that the switch stores ({PACKET} bytes), {CHUNK_BYTES} bytes for each chunk, receivers that",
        "serve packets, a",
        f"piece of a transfer per {format_seconds(PROCESSOR_S)} at most, which is what the shared processor can",
        "handle, and at most",
        f"{100 * FEW:g} % of pieces under {format_size(SMALL)}. *Simulated* is the plan with these costs.",
        "The native engine lets the next free NIC take any segment, which no simulation here does: a ring with a slow",
        "NIC takes less than simulated.",
        "Packets that are dropped, sent again or out of order are counted, and a run that has any is a miss.",
        "",
        *(["Missed:", "", *(f"* {miss}" for miss in misses), ""] if misses else []),
        "| case | size | schedule | bound | optcc | simulated | limit | ring | simulated | ring over optcc |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for outcome in outcomes:
        case = outcome.case
        if outcome.error:
            lines.append(f"| {case.name} | | | | {outcome.error} | | | | | |")
            continue
        recipe = outcome.plans["optcc"].recipe
        cells = [
            case.name,
            f"{case.nbytes / 1e6:.0f} MB",
            f"{recipe.family}, {recipe.segments} segments",
            format_seconds(outcome.bound_s),
            f"{outcome.achieved('optcc'):.4f}",
            f"{outcome.simulated('optcc'):.4f}",
            f"{case.limit}" if case.limit else "",
            f"{outcome.achieved('ring'):.4f}",
            f"{outcome.simulated('ring'):.4f}",
            f"{outcome.achieved('ring') / outcome.achieved('optcc'):.3f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
