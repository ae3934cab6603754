"""A tiny grid of the evaluation, and results for it that nobody had to simulate."""

from __future__ import annotations

from typing import Any

from optcc.study.cells import SweepCell, SweepResult
from optcc.study.evaluation import FAULT_FREE, OPTCC, Case, read_parts
from optcc.study.page import AS_MEASURED

MIB = 2**20
FOUR = "'uniform:servers=4,nics=8,rate=400Gb/s'"
ALL = "algorithms: [optcc, optcc-published, r2cc, balance, hot-repair]"
TEXT = f"""\
stragglers:
  where: [{{topologies: [{FOUR}], failures: [{{count: [1, 4]}}], per_chunk: [0us, 1us]}}]
  what: [{{sizes: 256MiB, {ALL}}}, {{sizes: 64MiB, algorithms: optcc}}]
rig:
  where:
    - topologies: ['uniform:servers=5,nics=1,rate=23.5Gb/s']
      failures: [{{nics: server0/nic0=1/2}}]
      per_chunk: [0us, 1us]
  what:
    - {{sizes: 256MiB, algorithms: [balance, optcc-published, optcc]}}
    - {{sizes: 256MiB, algorithms: optcc-published, segments: 256}}
several:
  where:
    - topologies: [{FOUR}]
      failures: [{{nics: server0/nic0}}, {{nics: 'server[0-1]/nic0'}}, {{nics: ['server0/nic[0-1]', server1/nic1]}}]
  what: [{{sizes: [64MiB, 256MiB], algorithms: optcc}}, {{sizes: 256MiB, {ALL.replace("optcc, ", "", 1)}}}]
messages:
  where: [{{topologies: [{FOUR}], failures: [{{count: 4}}]}}]
  what: [{{sizes: [1MiB, 256MiB], {ALL}}}]
fabrics:
  where:
    - topologies: ['uniform:servers=3,nics=2,rate=400Gb/s,fabric=rails,spine=2']
      failures: [{{nics: server1/nic0}}]
  what: [{{sizes: 256MiB, algorithms: optcc, baselines: usual}}]
stars:
  where: [{{topologies: ['uniform:servers=4,nics=1,rate=400Gb/s'], failures: [{{nics: server0/nic0=1/2}}]}}]
  what: [{{sizes: 64MiB, algorithms: optcc, segments: 128, alpha: 0us, per_chunk: 0us, receivers: stripes}}]
planning: [{{servers: 2, gpus: false, nbytes: {MIB}}}]
fleets: [{{gpus: 32, servers: 4}}]
"""
TINY = read_parts(TEXT.encode(), "tiny.yaml")
(RAILS,) = TINY.parts["fabrics"]


def result(time_s: float, bound_s: float = 1.2, with_costs_s: float = 1.15) -> SweepResult:
    """Of a job whose bound without failures is a second."""
    return SweepResult(bound_s, 1.0, bound_s - 1, time_s, "a family", 8, with_costs_s=with_costs_s, fluid_s=bound_s)


def outcomes(planted: Case | SweepCell | None = None, above: float = 0.011) -> dict[Any, Any]:
    """TINY's results where every plan of ours is 0.9 points above the unavoidable and rivals are far off; `planted` is
    `above` instead."""
    found: dict[Any, Any] = {}
    for case in (*TINY.stragglers, *TINY.several, *TINY.messages):
        found[case.of(FAULT_FREE)] = result(1.0)
        found[case] = result(1.2 + above if case == planted else 1.209 if case.scheme == OPTCC else 3.0)
    found[RAILS.job.key] = result(1.2 + (above if planted is RAILS else 0.009))
    found[RAILS.job.reference.key] = result(1.0)  # type: ignore[union-attr]
    for cell in TINY.parts["rig"]:
        found[cell.job.key] = result(1.28 if cell.job.segments else 2.0, 1.25, 1.25)
        found[cell.job.reference.key] = result(1.0, 1.25, 1.25)  # type: ignore[union-attr]
    return found


def rig_jobs() -> list[str]:
    """Keys of what was measured on the rig, by the cost of a chunk."""
    measured = [cell.job for cell in TINY.parts["rig"] if cell.job.segments]
    assert AS_MEASURED.startswith("optcc-published, k = 256")
    return [job.key for job in measured]
