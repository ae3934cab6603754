"""The transfers of a plan's channels by the rules of docs/consume-from-cpp.md, written from that page alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Step:
    """One transfer of a section; `after` are places in the section's list of steps."""

    src: int
    dst: int
    add: bool
    after: tuple[int, ...]
    route: int | None = None


def sections(lowered: dict[str, Any]) -> Iterator[tuple[int, int, int, list[Step]]]:
    """(segment, first byte, bytes, steps) of every section that is not empty."""
    for channel in lowered["channels"]:
        for segment in channel["segments"]:
            cuts = segment["cuts"]
            for s, (begin, end) in enumerate(pairwise(cuts)):
                if begin < end and channel["kind"] == "tree":
                    yield segment["segment"], begin, end - begin, tree_steps(channel, lowered["routes"])
                elif begin < end:
                    yield segment["segment"], begin, end - begin, ring_steps(channel, s, segment["ordering"])


def ring_steps(ring: dict[str, Any], section: int, ordering: str) -> list[Step]:
    """The steps of one section of a ring."""
    members, owner = ring["members"], ring["owners"][section]
    place = members.index(owner)
    chain = members[place + 1 :] + members[: place + 1]
    via = ring["via"][section] if ordering in ("via-leaf", "leaf-last") else None
    steps: list[Step] = []

    def add(*step: Any) -> tuple[int, ...]:
        steps.append(Step(*step))
        return (len(steps) - 1,)

    others = [leaf for leaf in ring["leaves"] if leaf != via]
    landed: tuple[int, ...] = ()
    for leaf in others:
        landed += add(leaf, chain[0], True, ())
    for src, dst in pairwise(chain):
        landed = add(src, dst, True, landed)
    if ordering == "via-leaf":
        landed = add(owner, via, True, landed)
        landed = add(via, owner, False, landed)
    finished = landed
    round_again = [owner, *chain[:-1]]
    for src, dst in pairwise(round_again):
        landed = add(src, dst, False, landed)
    for leaf in others:
        add(owner, leaf, False, finished)
    if ordering == "leaf-last":
        landed = add(round_again[-1], via, True, landed)
        landed = add(via, owner, False, landed)
        for src, dst in pairwise(round_again):
            landed = add(src, dst, False, landed)
    return steps


def tree_steps(tree: dict[str, Any], routes: list[dict[str, Any]]) -> list[Step]:
    """The steps of the section of a tree."""
    steps: list[Step] = []
    holds: dict[int, tuple[int, ...]] = {}
    for route in tree["up"]:
        src, dst = routes[route]["src"], routes[route]["dst"]
        steps.append(Step(src, dst, True, holds.get(src, ()), route))
        holds[dst] = (*holds.get(dst, ()), len(steps) - 1)
    result = {tree["root"]: holds.get(tree["root"], ())}
    for route in tree["down"]:
        src, dst = routes[route]["src"], routes[route]["dst"]
        steps.append(Step(src, dst, False, result.get(src, ()), route))
        result[dst] = (len(steps) - 1,)
    return steps


@dataclass
class Seen:
    """What happens to each piece of the buffer between any two bounds: every transfer with all that must have landed
    before it, the order of sums, and the first segment number."""

    transfers: Counter[Any]
    folds: dict[Any, list[int]]
    segments: dict[int, int]


def by_rules(lowered: dict[str, Any]) -> Seen:
    """From the channels."""
    between = {(route["src"], route["dst"]): i for i, route in enumerate(lowered["routes"])}
    rows, deps = [], []
    for segment, offset, length, steps in sections(lowered):
        deps += [[len(rows) + i for i in step.after] for step in steps]
        for step in steps:
            route = between.get((step.src, step.dst)) if step.route is None else step.route
            rows.append((segment, offset, length, step.src, step.dst, step.add, route))
    return _seen(rows, deps, lowered)


def by_rows(lowered: dict[str, Any]) -> Seen:
    """From the transfers themselves."""
    t = lowered["transfers"]
    names = ("segment", "offset", "length", "src", "dst", "reduce", "route")
    deps = [t["deps"][a:b] for a, b in pairwise(t["dep_ptr"])]
    return _seen(list(zip(*(t[name] for name in names), strict=True)), deps, lowered)


def _seen(rows: list[Any], deps: list[list[int]], lowered: dict[str, Any]) -> Seen:
    t = lowered["transfers"]
    bounds = sorted({0, *t["offset"], *map(int.__add__, t["offset"], t["length"])})
    seen, place = Seen(Counter(), {}, {}), {at: i for i, at in enumerate(bounds)}
    before: list[dict[int, frozenset[Any]]] = []  # of each row: piece -> what certainly landed before, in that piece
    for (segment, offset, length, src, dst, add, route), waits in zip(rows, deps, strict=True):
        own: dict[int, frozenset[Any]] = {}
        for piece in range(place[offset], place[offset + length]):
            earlier = [d for d in waits if piece in before[d]]
            own[piece] = frozenset().union(*(before[d][piece] | {(*rows[d][3:5], bool(rows[d][5]))} for d in earlier))
            seen.transfers[piece, src, dst, bool(add), route, own[piece]] += 1
            seen.segments[piece] = min(segment, seen.segments.get(piece, segment))
            if add:
                seen.folds.setdefault((piece, dst), []).append(src)
        before.append(own)
    return seen
