"""A sweep's axes, and the cells that they span."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from optcc.errors import InputError
from optcc.simulation.simulator import Receivers, usual_receivers
from optcc.sweep.cells import STRIPES, SweepCell, SweepJob, fingerprint
from optcc.sweep.failures import FailureEntry, MonteCarlo, Renamed
from optcc.values.cluster import Cluster

MAX_CELLS = 10**6
PLACELESS = {"ring", "balance", "r2cc", "optcc-published"}
"""Algorithms that spread a transfer over a server's live NICs by their rates and order. On a flat fabric their `Routes`
are the same, except for names, whichever of equal NICs are dead. Hot repair goes by each NIC's place, and our own
families by its number (`optcc.schedule.nics`); the order of servers matters to all of them."""

Costs = tuple[tuple[Fraction, ...], tuple[Fraction, ...]]


@dataclass(frozen=True)
class GridTopology:
    """A cluster before failures, and its name in the table.

    alpha_s, per_chunk_s : what its file has measured, where the grid names none and the file some; seconds
    """

    name: str
    cluster: Cluster
    alpha_s: Fraction | None = None
    per_chunk_s: Fraction | None = None


@dataclass(frozen=True)
class SweepGrid:
    """The axes of a sweep. Times in seconds, sizes in bytes; `algorithms` is (None,) for bounds alone.

    notes : what was skipped or assumed in the topologies; receivers : as `optcc.simulate` takes it
    """

    topologies: tuple[GridTopology, ...]
    failures: tuple[FailureEntry, ...]
    sizes: tuple[int, ...]
    algorithms: tuple[str | None, ...]
    alpha_s: tuple[Fraction, ...]
    per_chunk_s: tuple[Fraction, ...]
    segments: tuple[int | None, ...]
    seed: int
    notes: tuple[str, ...] = ()
    receivers: Receivers | None = None

    def clusters(self) -> dict[str, Cluster]:
        """Every topology's cluster by its fingerprint."""
        return {fingerprint(topology.cluster): topology.cluster for topology in self.topologies}

    @property
    def monte_carlo(self) -> bool:
        """Whether any failures are random moments."""
        return any(isinstance(entry, MonteCarlo) for entry in self.failures)

    @property
    def renamed(self) -> Renamed:
        """What of a random moment may be renamed without a difference to any row.

        Bounds go by the rates of servers, in whatever order. A baseline's depth, where it is looked for, goes by its
        own times; else it is our own plan's, which may depend on places.
        """
        if self.algorithms == (None,):
            return "servers"
        costs = [self._costs(topology) for topology in self.topologies]
        own_depth = self.segments == (None,) and all(all(alphas) or all(chunks) for alphas, chunks in costs)
        return "nics" if own_depth and PLACELESS.issuperset(self.algorithms) else "nothing"

    def cells(self) -> tuple[SweepCell, ...]:
        """The rows, in the order of the table: topologies, failures, sizes, alpha, per-chunk, segments, algorithms."""
        per_set = len(list(self._jobs("", (), (self.alpha_s, self.per_chunk_s))))
        rows = len(self.topologies) * sum(map(len, self.failures)) * per_set
        if rows > MAX_CELLS:
            raise InputError("too large a grid", where="grid", expected=f"at most {MAX_CELLS} rows", got=rows)
        return tuple(self._cells())

    def _cells(self) -> Iterator[SweepCell]:
        for topology in self.topologies:
            cluster_id = fingerprint(topology.cluster)
            receivers = self.receivers or usual_receivers(topology.cluster.uplinks)
            servers, ranks = len(topology.cluster.servers), len(topology.cluster.ranks)
            for entry, failures in enumerate(self.failures):
                for failed in failures.sets(topology.cluster, self.seed, self.renamed):
                    nics = tuple(f"{nic}={left}" for nic, left in failed.nics)
                    for job in self._jobs(cluster_id, nics, self._costs(topology), receivers):
                        yield SweepCell(
                            topology.name, servers, ranks, entry, failed.place, len(nics), failed.left, failed.draw,
                            self.seed, job, failed.impossible,
                        )  # fmt: skip

    def _costs(self, topology: GridTopology) -> Costs:
        """Every alpha and every per-chunk cost of `topology`: what it has measured is one value, as a default is."""
        alpha_s, per_chunk_s = topology.alpha_s, topology.per_chunk_s
        return (
            self.alpha_s if alpha_s is None else (alpha_s,),
            self.per_chunk_s if per_chunk_s is None else (per_chunk_s,),
        )

    def _jobs(
        self, cluster_id: str, failures: tuple[str, ...], costs: Costs, receivers: Receivers = STRIPES
    ) -> Iterator[SweepJob]:
        for size in self.sizes:
            for alpha_s in costs[0]:
                for per_chunk_s in costs[1]:
                    for segments in self.segments:
                        for algorithm in self.algorithms:
                            yield SweepJob(
                                cluster_id, failures, size, alpha_s, per_chunk_s, segments, algorithm,
                                receivers if algorithm else STRIPES,
                            )  # fmt: skip
