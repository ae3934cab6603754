"""What Monte Carlo draws say about overhead: mean and quantiles.

A draw in which some server can no longer send or receive stops the job: its overhead is infinite. It counts so in the
quantiles, and is left out of the mean, which stands beside the number of such draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from optcc.sweep.cells import Row, SweepCell, SweepJob, SweepResult, row
from optcc.sweep.failures import MonteCarlo
from optcc.sweep.grid import SweepGrid

QUANTILES = (0.5, 0.9, 0.99, 0.999)


@dataclass(frozen=True)
class OverheadSpread:
    """Overheads of some draws as fractions, ascending; infinite where there is none."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        """Over the draws that have an overhead; None when none has."""
        finite = [value for value in self.values if math.isfinite(value)]
        return math.fsum(finite) / len(finite) if finite else None

    def quantile(self, q: float) -> float:
        """The least overhead that at least the fraction `q` of the draws does not exceed."""
        return self.values[max(0, math.ceil(q * len(self.values)) - 1)]

    def as_json(self) -> dict[str, float | None]:
        """Numbers by name; null for what is infinite."""
        named = {"mean": self.mean, **{f"p{100 * q:g}": self.quantile(q) for q in QUANTILES}, "max": self.values[-1]}
        return {name: value if value is not None and math.isfinite(value) else None for name, value in named.items()}


@dataclass(frozen=True)
class Distribution:
    """The draws of one Monte Carlo entry on one topology, at one size and cost, by one algorithm.

    inputs : the columns that are the same in all; expected_failed, mean_failed : dead NICs, by the model and as drawn
    stopped : draws in which a server is cut off; unsimulated : others without a simulated time
    """

    inputs: dict[str, Any]
    seed: int
    draws: int
    expected_failed: float
    mean_failed: float
    stopped: int
    unsimulated: int
    unavoidable: OverheadSpread
    achieved: OverheadSpread | None

    def as_json(self) -> dict[str, Any]:
        """One JSON object."""
        return {
            **self.inputs,
            "seed": self.seed,
            "draws": self.draws,
            "expected_failed": self.expected_failed,
            "mean_failed": self.mean_failed,
            "stopped": self.stopped,
            "unsimulated": self.unsimulated,
            "unavoidable_overhead": self.unavoidable.as_json(),
            "overhead": self.achieved.as_json() if self.achieved else None,
        }


def distributions(
    grid: SweepGrid, cells: tuple[SweepCell, ...], results: Mapping[str, SweepResult]
) -> tuple[Distribution, ...]:
    """One per Monte Carlo entry, topology, size, cost and algorithm of `grid`, in the order of the table."""
    clusters = grid.clusters()
    alike: dict[tuple[str, int, SweepJob], list[Row]] = {}
    for cell in cells:
        if isinstance(grid.failures[cell.entry], MonteCarlo):
            same = (cell.topology, cell.entry, replace(cell.job, failures=()))
            alike.setdefault(same, []).append(row(cell, results))
    found = []
    for (_, entry, job), rows in alike.items():
        model = grid.failures[entry]
        assert isinstance(model, MonteCarlo)
        found.append(_distribution(model.expected(clusters[job.cluster_id]), job, rows))
    return tuple(found)


def _distribution(expected: Fraction, job: SweepJob, rows: list[Row]) -> Distribution:
    first = rows[0]
    names = ("topology", "servers", "size", "alpha_s", "per_chunk_s", "failure_entry", "algorithm", "receivers")
    stopped = sum(r["unavoidable_overhead"] is None for r in rows)
    return Distribution(
        inputs={name: first[name] for name in names} | {"segments": job.segments},
        seed=first["seed"],
        draws=len(rows),
        expected_failed=float(expected),
        mean_failed=sum(r["failed"] for r in rows) / len(rows),
        stopped=stopped,
        unsimulated=sum(r["overhead"] is None for r in rows) - stopped if job.algorithm else 0,
        unavoidable=_spread(rows, "unavoidable_overhead"),
        achieved=_spread(rows, "overhead") if job.algorithm else None,
    )


def _spread(rows: list[Row], column: str) -> OverheadSpread:
    return OverheadSpread(tuple(sorted(math.inf if r[column] is None else r[column] for r in rows)))
