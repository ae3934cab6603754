"""The slowest parts of planning direct exchange, in C: matchings of greatest worth, steps, cuts, dependencies."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optcc.errors import InputError
from optcc.machine.native import NativeCode, array, call, struct

Ints = NDArray[np.int64]


def assigned(worth: NDArray[Any]) -> Ints:
    """For each row its column, -1 for rows beyond the columns: a matching of greatest total worth.

    worth : (rows, columns), numbers that float64 represents exactly

    Of several matchings of greatest worth this takes the one that scipy 1.11 to 1.18 take.
    """
    found = np.empty(len(worth), np.int64)
    call("planning_assign", *worth.shape, np.ascontiguousarray(worth, np.float64), found)
    return found


_Cuts = struct(
    "cut_pairs",
    {
        **dict.fromkeys(("pairs", "pieces", "slots", "room", "granule", "near", "cost", "cost_of"), int),
        "pair": array(np.int64, "pairs", 5),
        "piece": array(np.int64, "pieces", 4),
        "slot": array(np.int64, "slots", 4),
        "found": array(np.int64, 9, "room", written=True),
    },
)


def cut(pair: Ints, piece: Ints, slot: Ints, limits: tuple[int, int, int, int]) -> Ints:
    """The bytes of each pair's pieces divided by its slots' weights: (9, rows), src, dst, begin, kind, hub, start,
    stop, nic, place of the slot.

    pair : (pairs, 5), src, dst, how many pieces, how many slots, ticks added to their begins
    piece : (pieces, 4), kind, hub, start, stop; slot : (slots, 4), begin, size, nic, weight; pair after pair
    limits : granule of cuts; 1/near of its bytes that a slot takes more or less to end with a piece; and the ticks that
        a chunk costs, a fraction
    """
    found, count = np.empty((9, len(piece) + len(slot)), np.int64), ctypes.c_int64()
    granule, near, cost, cost_of = limits
    cuts = _Cuts(
        pairs=len(pair), pieces=len(piece), slots=len(slot), room=found.shape[1], granule=granule, near=near,
        cost=cost, cost_of=cost_of, pair=pair, piece=piece, slot=slot, found=found,
    )  # fmt: skip
    call("planning_cut", cuts, count)
    return found[:, : count.value].copy()


_Rows = struct(
    "exchange_rows",
    {
        **dict.fromkeys(("rows", "ranks", "nics", "held", "waits", "most"), int),
        **dict.fromkeys(("src", "kind", "hub", "start", "stop", "nic"), array(np.int64, "rows")),
        "floor": array(np.int64, "ranks"),
        **dict.fromkeys(("held_row", "held_on"), array(np.int64, "held")),
        **dict.fromkeys(("key", "order"), array(np.int64, "rows", written=True)),
        "extra": array(np.int64, "rows", "most", written=True),
        "latest": array(np.int64, "most", written=True),
        "ptr": array(np.int64, "rows+1", written=True),
        "dep": array(np.int64, "waits", written=True),
    },
)


def in_order(columns: dict[str, Ints], floor: Ints, held: tuple[Ints, Ints], nics: int, most: int) -> tuple[Ints, ...]:
    """(order, ptr, dep) of a direct exchange's rows: the rows by time, and by place in that order the places that each
    waits for, CSR, ascending. A row waits for the rows of its hub that share bytes with it, and for the latest `most`
    dependencies of earlier rows on its NIC.

    columns : `src`, `kind`, `hub`, `start`, `stop`, `key` (when it is due) and `nic` (its number, below `nics`)
    floor : of each rank, from which byte of its section results wait for data; held : more pairs (row that waits, row
        that it waits for), which count if the second comes first
    """
    rows, none = len(columns["key"]), np.empty(0, np.int64)
    given = {name: np.array(column, np.int64) for name, column in columns.items()}
    given |= {"floor": floor, "held_row": held[0], "held_on": held[1], "latest": np.empty(most, np.int64)}
    given |= {"order": np.empty(rows, np.int64), "extra": np.empty((rows, most), np.int64)}
    given |= {"ptr": np.empty(rows + 1, np.int64)}
    sizes = {"rows": rows, "ranks": len(floor), "nics": nics, "held": len(held[0]), "most": most}
    call("planning_due", _Rows(**sizes, **given, waits=0, dep=none))
    dep = np.empty(given["ptr"][-1], np.int64)
    call("planning_waits", _Rows(**sizes, **given, waits=len(dep), dep=dep))
    return given["order"], given["ptr"], dep


_Starving = struct(
    "starving_steps",
    {
        **dict.fromkeys(("ranks", "rails", "steps", "parts", "late_count", "room", "lone", "gap", "cost"), int),
        **dict.fromkeys(("one", "tie", "slack", "brief"), int),
        "longest": array(np.int64, 2),
        "starts": array(np.int64, "steps+1"),
        "live": array(np.bool_, "rails", "ranks"),
        "late": array(np.int64, "late_count"),
        **dict.fromkeys(("raw", "needs", "ties"), array(np.int64, "ranks", "ranks")),
        **dict.fromkeys(("part", "begins", "gaps"), array(np.int64, "parts", "ranks", "ranks")),
        **dict.fromkeys(("left", "served"), array(np.int64, "ranks", "ranks", written=True)),
        "found": array(np.int64, "room", 6, written=True),
        **dict.fromkeys(("count", "idle"), array(np.int64, 1, written=True)),
        "chunks": array(np.int64, 2, written=True),
    },
)


def starving_steps(**given: Any) -> tuple[Ints, int, int, int]:
    """Steps of a half where one rank starves: the slots (rail, sender, receiver, amount, begin, size), the time in
    which its NICs could receive more, and how many chunks it sends and receives. Updates `left` and `served`.

    given : the fields of `starving_steps` in native/planning.h, but for the sizes and what is found
    """
    (rails, ranks), steps = given["live"].shape, len(given["starts"]) - 1
    # On a rail every rank sends a chunk in a step, and the starving rank one to each and gets one of each, at most.
    found = np.empty((steps * rails * 3 * ranks, 6), np.int64)
    count, idle, chunks = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(2, np.int64)
    sizes = {"ranks": ranks, "rails": rails, "steps": steps, "parts": len(given["part"]), "room": len(found)}
    late = len(given["late"])
    call(
        "planning_starving",
        _Starving(**sizes, late_count=late, found=found, count=count, idle=idle, chunks=chunks, **given),
    )
    return found[: count[0]], int(idle[0]), int(chunks[0]), int(chunks[1])


_Steady = struct(
    "steady_steps",
    {
        **dict.fromkeys(("ranks", "rails", "steps", "slow_count", "room"), int),
        **dict.fromkeys(("gap", "cost", "tie", "slack", "places", "coarse"), int),
        "ends": array(np.int64, "steps+1"),
        "rail": array(np.int64, "rails"),
        "live": array(np.bool_, "rails", "ranks"),
        "quiet": array(np.bool_, "rails"),
        "hub": array(np.bool_, "ranks"),
        "slow": array(np.int64, "slow_count"),
        **dict.fromkeys(("section", "weight", "ties"), array(np.int64, "ranks", "ranks")),
        "sent": array(np.int64, "ranks", "ranks", written=True),
        "found": array(np.int64, "room", 6, written=True),
        "count": array(np.int64, 1, written=True),
    },
)


def steady_steps(**given: Any) -> Ints:
    """Steps of a half where several ranks starve: the slots (sender, receiver, rail, begin, size, amount). Updates
    `sent`.

    given : the fields of `steady_steps` in native/planning.h, but for the sizes and what is found
    """
    (rails, ranks), steps = given["live"].shape, len(given["ends"]) - 1
    found, count = np.empty((steps * rails * 2 * ranks, 6), np.int64), np.zeros(1, np.int64)
    sizes = {"ranks": ranks, "rails": rails, "steps": steps, "slow_count": len(given["slow"]), "room": len(found)}
    call("planning_steady", _Steady(**sizes, found=found, count=count, **given))
    return found[: count[0]]


_Grouped = struct(
    "group_steps",
    {
        **dict.fromkeys(("ranks", "chunks", "rails", "groups", "room", "apart", "lands"), int),
        **dict.fromkeys(("half", "unit", "one_more"), int),
        "parent": array(np.int64, "chunks", "ranks"),
        "group": array(np.int64, "ranks"),
        "on": array(np.bool_, "rails", "ranks"),
        "uplink": array(np.int64, "groups"),
        "found": array(np.int64, "room", 6, written=True),
        "count": array(np.int64, 1, written=True),
    },
)


def group_steps(**given: Any) -> Ints:
    """Steps of chunks along trees: the moves (step, sender, receiver, place of the rail, chunk, whether a result).

    given : the fields of `group_steps` in native/planning.h, but for the sizes and what is found
    Raises InputError where some transfer would wait for ever.
    """
    (chunks, ranks), rails = given["parent"].shape, len(given["on"])
    found, count = np.empty((2 * chunks * (ranks - 1), 6), np.int64), np.zeros(1, np.int64)
    sizes = {"ranks": ranks, "chunks": chunks, "rails": rails, "groups": len(given["uplink"]), "room": len(found)}
    if call("planning_grouped", _Grouped(**sizes, found=found, count=count, **given)) is NativeCode.STUCK:
        raise InputError("chunks that wait for ever", where="parents", expected="a tree for each chunk")
    return found
