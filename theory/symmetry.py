"""Servers, GPU positions and rails that symmetry makes equal, found from their rates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from optcc.theory.network import OWN_RAIL, RailPort
from optcc.values.cluster import Cluster, Server


def server_types(cluster: Cluster, merge: bool, apart: str | None) -> tuple[list[Server], list[list[str]]]:
    """(a server of each type, the names of all its servers); server `apart` is a type of its own."""
    types: dict[object, tuple[Server, list[str]]] = {}
    for server in cluster.servers:
        rates = tuple((nic.rail, nic.gpu, nic.out_rate, nic.in_rate) for nic in server.nics)
        alike = merge and server.name != apart
        key = (rates, server.gpus, server.nvlink_rate, server.pod) if alike else server.name
        types.setdefault(key, (server, []))[1].append(server.name)
    return [server for server, _ in types.values()], [names for _, names in types.values()]


@dataclass
class SlotType:
    """GPU positions that are equal on every server type, and their NICs there (None: no such GPU)."""

    indices: list[int]
    groups: list[tuple[RailPort, ...] | None]

    def join(self, index: int, groups: list[tuple[RailPort, ...] | None]) -> None:
        """Add one more GPU position with equal rates: only the names are new."""
        self.indices.append(index)
        for a, (mine, other) in enumerate(zip(self.groups, groups, strict=True)):
            if mine is not None and other is not None:
                self.groups[a] = tuple(
                    replace(g, nics=g.nics + h.nics, rails=tuple(dict.fromkeys(g.rails + h.rails)))
                    for g, h in zip(mine, other, strict=True)
                )


def slot_types(cluster: Cluster, servers: list[Server], merge: bool) -> list[SlotType]:
    rails = cluster.fabric.rails
    if not cluster.gpu_ranks:
        return [SlotType([0], list(_merge_rails([_by_rail(s, None, rails) for s in servers], merge, cluster)))]
    width = max(server.gpus for server in servers)
    found = [[_by_rail(s, g, rails) if g < s.gpus else None for s in servers] for g in range(width)]
    # Slots may be exchanged when rails do not tell them apart, or when each slot has a rail to itself.
    used = [{rail for by_rail in slot if by_rail for rail in by_rail} for slot in found]
    own = rails and all(len(u) <= 1 for u in used) and sum(map(len, used)) == len(set().union(*used))
    slots: dict[object, SlotType] = {}
    for g, slot in enumerate(found):
        groups: list[tuple[RailPort, ...] | None] = []
        for by_rail in slot:
            if by_rail is None:
                groups.append(None)
            else:
                groups.append(tuple(replace(group, rail=OWN_RAIL if own else rail) for rail, group in by_rail.items()))
        rates = tuple(None if x is None else tuple((h.rail, h.out_rate, h.in_rate) for h in x) for x in groups)
        links = tuple(_links(cluster, rail) for rail in sorted(used[g]))
        key = (rates, links) if merge and (own or not rails) else g
        if key in slots:
            slots[key].join(g, groups)
        else:
            slots[key] = SlotType([g], groups)
    return list(slots.values())


def _by_rail(server: Server, gpu: int | None, rails: bool) -> dict[int, RailPort]:
    """The live NICs of one GPU (None: of the whole server), as one group per rail; without rails, as one group."""
    found: dict[int, RailPort] = {}
    for i, nic in enumerate(server.nics):
        if not nic.alive or (gpu is not None and server.gpu_of(i) != gpu):
            continue
        rail = (nic.rail if nic.rail is not None else i) if rails else 0
        old = found.get(rail, RailPort(rail, Fraction(0), Fraction(0), (), (rail,) if rails else ()))
        nics = (*old.nics, nic.name)
        found[rail] = replace(old, out_rate=old.out_rate + nic.out_rate, in_rate=old.in_rate + nic.in_rate, nics=nics)
    return found


def _links(cluster: Cluster, rail: int) -> tuple[Fraction | None, ...]:
    """A rail's spine link, out and in: rails with different links cannot stand for each other."""
    return tuple(cluster.uplinks.get(("spine", rail, way)) for way in ("out", "in"))


def _merge_rails(by_server: list[dict[int, RailPort]], merge: bool, cluster: Cluster) -> Iterator[tuple[RailPort, ...]]:
    """Rails on which every server type has equal rates become one rail as wide as all of them."""
    kinds: dict[object, list[int]] = {}
    for rail in sorted(set().union(*by_server)):
        column = tuple((g.out_rate, g.in_rate) if (g := groups.get(rail)) else None for groups in by_server)
        kinds.setdefault((column, _links(cluster, rail)) if merge else rail, []).append(rail)
    for groups in by_server:
        merged = []
        for kind in kinds.values():
            parts = [groups[rail] for rail in kind if rail in groups]
            if parts:
                merged.append(
                    RailPort(
                        rail=kind[0],
                        out_rate=sum((p.out_rate for p in parts), Fraction(0)),
                        in_rate=sum((p.in_rate for p in parts), Fraction(0)),
                        nics=tuple(name for p in parts for name in p.nics),
                        rails=tuple(rail for p in parts for rail in p.rails),
                    )
                )
        yield tuple(merged)


SHOWN = 4
"""Servers that are named one by one, so that a line can be read."""


def type_name(members: list[str], server: Server, gpu_ranks: bool, slots: list[int]) -> str:
    name = members[0]
    if len(members) > SHOWN:
        name = f"each of {len(members)} servers ({', '.join(members[: SHOWN - 1])}, ..., {members[-1]})"
    elif len(members) > 1:
        name = f"each of {', '.join(members[:-1])} and {members[-1]}"
    if not gpu_ranks:
        return name
    return f"GPU {slots[0]} of {name}" if len(slots) == 1 else f"GPUs {', '.join(map(str, slots))} of {name}"
