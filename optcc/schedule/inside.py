"""Inside servers: GPUs as ranks. A schedule between servers runs between their GPUs' NICs, and NVLink does the rest.

Every server sums each piece of the buffer in one of its GPUs over NVLink. The sum takes part in a schedule between
servers, and the result is handed out over NVLink; different pieces do this at the same time. Which GPU sums a piece (it
*gathers*) and whose NIC takes it to other servers (this GPU *carries*) are separate questions:

* gathering shared out evenly loads every NVLink port by 2(G-1)/G of the buffer, the least there is;
* carrying in proportion to live NIC rates loads all NICs of a server alike.

So each GPU carries what it gathers, as far as its NIC allows. The rest, left over by a dead or slow NIC, goes by the
neighbours' NICs, which NCCL calls PXN. This makes no NVLink port busier (proof id inside-servers). GPUs of equal place
gather the same bytes on every server, so a channel stays on its rail. Where NVLink is the limit, part of the buffer
goes between teams of fewer GPUs. `optcc.theory.inside_split` finds the parts, `optcc.schedule.inside_parts` makes
bundles of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Annotated, ClassVar

from optcc.errors import InfeasibleError
from optcc.schedule.assemble import granule
from optcc.schedule.columns import GRANULE, Schedule
from optcc.schedule.inside_cells import Cells, cells_of
from optcc.schedule.inside_channels import Site, channels
from optcc.schedule.inside_groups import SharesInRows, gpu_groups, usable, view
from optcc.schedule.inside_join import Placed, join
from optcc.schedule.inside_rows import GpuRows, channel_rows
from optcc.schedule.nested import NestedRings
from optcc.schedule.recipe import OfFamily, Recipe, Segments, require
from optcc.schedule.striped import StripedExchange
from optcc.values.cluster import Cluster
from optcc.values.json_records import LAST, Least
from optcc.values.json_types import Natural

if TYPE_CHECKING:
    from optcc.schedule.candidates import CandidateFamily, Costs
    from optcc.values.bound import Bound


INNER: dict[str, type[NestedRings] | type[StripedExchange]] = {
    inner.family: inner for inner in (NestedRings, StripedExchange)
}
"""Recipes that may run between servers."""


@dataclass(frozen=True)
class Bundle:
    """A part of the buffer, its GPU groups, and the recipe between them.

    share : of the buffer
    teams : into how many groups each server is divided
    gather, carry : for each group the shares of its GPUs
    inner : the recipe of what runs between the groups, on `view` of them
    hand_on : results leave, and are handed out, by the GPU after the one that they are summed in. One hop more for sums
        of many servers, but then results wait for this hop alone. In groups that gather and carry evenly
    straight : between servers only GPUs of equal place meet, so no byte leaves its rail. A group in which this GPU does
        not carry is a guest of the others. Its neighbours' NICs reach theirs, which pass on what they get with their
        own data. A guest can be a leaf of nested rings, not part of a ring
    """

    share: Fraction
    teams: Natural
    gather: SharesInRows
    carry: SharesInRows
    inner: Annotated[Recipe, OfFamily("inner", INNER), LAST]
    hand_on: bool = False
    straight: bool = False


@dataclass(frozen=True)
class InsideServers(Recipe):
    """Bundles side by side in the buffer, all at once in time.

    bundles : parts of the buffer, shares of sum 1
    chunks : number of runs in which a GPU's part moves over NVLink
    """

    family: ClassVar[str] = "inside-servers"
    bundles: Annotated[tuple[Bundle, ...], Least(1), LAST]
    chunks: Segments
    segments: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "segments", max((bundle.inner.segments for bundle in self.bundles), default=1))

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        """See the module. Raises InfeasibleError where the fabric does not join two GPUs that would have to meet."""
        done, parts = Fraction(0), list[Placed]()

        @cache  # channels of one shape are lowered once
        def cells(inner: Recipe, between: Cluster, size: int, longest: int) -> Cells:
            made = inner.moves(size) if isinstance(inner, StripedExchange) else inner.lower(between, size)
            return cells_of(made, longest // 2)

        @cache
        def rows(
            inner: Recipe, between: Cluster, size: int, sites: tuple[Site, ...], hands: tuple[bool, ...], straight: bool
        ) -> GpuRows:
            longest = max(2 * GRANULE, size // self.chunks)
            return channel_rows(cells(inner, between, size, longest), sites, longest, hands, straight)

        for bundle in self.bundles:
            start, done = granule(done * nbytes, nbytes), done + bundle.share
            whole = (nbytes if done == 1 else granule(done * nbytes, nbytes)) - start
            own = gpu_groups(cluster, bundle.teams)
            between = view(cluster, own, bundle.carry)
            shares = zip(bundle.gather, bundle.carry, strict=True)
            hands = tuple(bundle.hand_on and len({*gather, *carry}) == 1 for gather, carry in shares)
            for channel in channels(bundle.gather, bundle.carry):
                low, high = (whole if at == 1 else _down(whole * at) for at in (channel.low, channel.high))
                if low < high:
                    made = rows(bundle.inner, between, high - low, channel.sites, hands, bundle.straight)
                    parts.append(Placed(start + low, own, channel.places, made))
        try:
            return join(cluster, nbytes, parts)
        except InfeasibleError as error:
            hint = "Join the rails by a spine, or use what all servers have alike; packed trees take any topology."
            raise InfeasibleError(
                error.what, where=error.where, expected=error.expected, got=error.got, hint=hint
            ) from None

    def fluid_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """Seconds, in closed form for one bundle of whole servers on one fabric; else from the bytes of the lowered
        schedule."""
        bundle = self.bundles[0]
        if not cluster.fabric.flat or len(self.bundles) > 1 or bundle.teams > 1:
            return super().fluid_s(cluster, nbytes)
        own = gpu_groups(cluster)
        worst = bundle.inner.fluid_s(view(cluster, own, bundle.carry), nbytes) if len(own) > 1 else Fraction(0)
        for server, shares in zip(cluster.servers, bundle.gather, strict=True):
            if server.gpus > 1:
                worst = max(worst, nbytes * nvlink_load(shares) / server.nvlink_rate)
        return worst

    def check(self, cluster: Cluster) -> None:
        """Raise InputError unless shares, inner recipes and chunks fit each other and `cluster`."""
        require(cluster.gpu_ranks, "cluster", "GPUs as ranks", "servers as ranks")
        super().check(cluster)
        total = sum((bundle.share for bundle in self.bundles), Fraction(0))
        require(total == 1 and all(bundle.share > 0 for bundle in self.bundles), "share", "above 0, of sum 1", total)
        for server in cluster.servers:
            require(server.gpus == 1 or server.nvlink_rate > 0, f"nvlink of {server.name}", "a rate above 0", 0)
        for bundle in self.bundles:
            fits = all(server.gpus % bundle.teams == 0 for server in cluster.servers)
            require(fits, "teams", "a divisor of every server's GPUs", bundle.teams)
            require(bundle.teams == 1 or len(cluster.servers) > 1, "teams", "1, for a single server", bundle.teams)
            apart = bundle.straight and isinstance(bundle.inner, StripedExchange)
            require(not apart, "straight", "false, for direct exchange", bundle.straight)
            rings = bundle.hand_on and isinstance(bundle.inner, NestedRings)
            require(not rings, "hand_on", "false, for nested rings, most of whose sums are not sent on", bundle.hand_on)
            own = gpu_groups(cluster, bundle.teams)
            sizes = sorted({len(group.gpus) for group in own})
            require(not bundle.straight or len(sizes) == 1, "straight", "crews of equal size, since places meet", sizes)
            for name, shares in (("gather", bundle.gather), ("carry", bundle.carry)):
                fits = [len(row) for row in shares] == [len(group.gpus) for group in own]
                require(fits, name, "a share for every GPU of every crew", [len(row) for row in shares])
                for group, row in zip(own, shares, strict=True):
                    fine = min(row) >= 0 and sum(row, Fraction(0)) == 1
                    require(fine, f"{name} of {group.name}", "shares of 0 or more, of sum 1", [str(x) for x in row])
            for group, row in zip(own, bundle.carry, strict=True):
                for gpu, share in zip(group.gpus, row, strict=True):
                    alive = not share or len(own) == 1 or usable(gpu) > 0
                    require(alive, f"carry of {gpu.name}", "0, since its NICs are dead one way", share)
            bundle.inner.check(view(cluster, own, bundle.carry))

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        """The recipe between servers, and where neighbours' NICs help out."""
        lines: list[tuple[str, str]] = []
        for bundle in self.bundles:
            own = gpu_groups(cluster, bundle.teams)
            teams = f" of {bundle.teams} teams each" if bundle.teams > 1 else ""
            part = f"{float(bundle.share) * 100:.4g} % by {bundle.inner.family} between servers{teams}"
            lines += [("part", part), *bundle.inner.describe(view(cluster, own, bundle.carry))]
            helped = [
                (group, [gpu.name for gpu, share in zip(group.gpus, carry, strict=True) if not share])
                for group, carry, gather in zip(own, bundle.carry, bundle.gather, strict=True)
                if carry != gather
            ]
            for group, silent in helped[:4]:
                what = f"{', '.join(silent)} send" if silent else "slow NICs leave part"
                lines.append(("neighbours", f"{group.name}: {what} by the others' NICs"))
            lines += [("neighbours", f"and {len(helped) - 4} more")] * (len(helped) > 4)
        return [*lines, ("inside servers", f"over NVLink, each GPU's part in {self.chunks} runs or more")]

    @classmethod
    def candidates(cls, cluster: Cluster, bound: Bound, costs: Costs) -> Iterable[CandidateFamily]:
        """See `inside_candidates`."""
        from optcc.schedule.inside_candidates import inside_candidates

        return inside_candidates(cluster, bound, costs) if cluster.gpu_ranks else []

    @classmethod
    def at_once(cls, cluster: Cluster, bound: Bound, costs: Costs) -> Recipe | None:
        """See `inside_candidates`; None where servers have no place in common."""
        from optcc.schedule.inside_candidates import inside_at_once

        with suppress(InfeasibleError):
            return inside_at_once(cluster, bound, costs) if cluster.gpu_ranks else None
        return None


def nvlink_load(gather: Sequence[Fraction]) -> Fraction:
    """Bytes in (and out) of a group's busiest NVLink port per byte of the buffer; 2(G-1)/G when all gather alike.

    Every GPU sends what it does not gather, and is sent the sum of it. A gathering GPU also receives the data of G-2
    others and sends them results.
    """
    return 1 + (len(gather) - 2) * max(gather) if len(gather) > 1 else Fraction(0)


def _down(position: Fraction) -> int:
    return int(position) // GRANULE * GRANULE
