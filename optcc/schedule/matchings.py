"""The slowest parts of planning direct exchange, in C: matchings of greatest worth, cuts, dependencies of transfers."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optcc.machine.native import array, call, struct

Ints = NDArray[np.int64]


def assigned(worth: NDArray[Any]) -> Ints:
    """For each row its column, -1 for rows beyond the columns: a matching of greatest total worth.

    worth : (rows, columns), numbers that float64 represents exactly

    Of several matchings of greatest worth this takes the one that scipy 1.11 to 1.18 take.
    """
    found = np.empty(len(worth), np.int64)
    call("planning_assign", *worth.shape, np.ascontiguousarray(worth, np.float64), found)
    return found


_Step = struct(
    "exchange_step",
    {
        **dict.fromkeys(("rails", "ranks", "begin", "end", "cost", "one", "tie"), int),
        **dict.fromkeys(("senders", "receivers"), array(np.bool_, "rails", "ranks")),
        "needs": array(np.int64, "ranks", "ranks"),
        **dict.fromkeys(("served", "limit"), array(np.int64, "ranks", "ranks", written=True)),
        **dict.fromkeys(("late", "ties"), array(np.int64, "ranks", "ranks")),
        "found": array(np.int64, "rails", "ranks", 4, written=True),
    },
)


def exchanged(
    senders: NDArray[np.bool_], receivers: NDArray[np.bool_], begin: int, end: int, cost: int, one: int, tie: int,
    needs: Ints, served: Ints, limit: Ints, late: Ints, ties: Ints,
) -> Ints:  # fmt: skip
    """One step: on each rail a matching of the pairs furthest behind. Returns (chunks, 4): place of the rail, sender,
    receiver, amount. Updates `served` and `limit`.

    senders, receivers : (rails, ranks), the ranks that may; begin, end : of the step, in `one`; cost : of a chunk
    needs, served, limit : (ranks, ranks), a pair's total, the amount sent, and the amount that is ready
    late : amount added to a pair's delay; ties : (ranks, ranks), less than `tie`, settles ties
    """
    rails, ranks = senders.shape
    found, count = np.empty((rails, ranks, 4), np.int64), ctypes.c_int64()
    step = _Step(
        rails=rails, ranks=ranks, begin=begin, end=end, cost=cost, one=one, tie=tie, senders=senders,
        receivers=receivers, needs=needs, served=served, limit=limit, late=late, ties=ties, found=found,
    )  # fmt: skip
    call("planning_exchange", step, count)
    return found.reshape(-1, 4)[: count.value]


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


def grouped_by(numbers: Ints, count: int) -> tuple[Ints, Ints]:
    """(ptr, places), CSR: the places in `numbers` of each number from 0 to `count` - 1, ascending."""
    ptr, places = np.empty(count + 1, np.int64), np.empty(len(numbers), np.int64)
    call("planning_group", len(numbers), np.ascontiguousarray(numbers, np.int64), count, ptr, places)
    return ptr, places


_Rows = struct(
    "exchange_rows",
    {
        **dict.fromkeys(("rows", "ordered", "waits", "most"), int),
        "order": array(np.int64, "ordered"),
        **dict.fromkeys(("nics", "keys"), array(np.int64, "rows")),
        "free": array(np.bool_, "rows"),
        "ptr": array(np.int64, "rows+1"),
        "on": array(np.int64, "waits"),
        "pairs": array(np.int64, "ordered", "most", 2, written=True),
    },
)


def waited_for_before(
    order: Ints, nics: Ints, keys: Ints, free: NDArray[np.bool_], ptr: Ints, on: Ints, most: int
) -> Ints:
    """(pairs, 2), row that waits and row that it waits for. A row waits for the latest dependencies of earlier rows on
    its NIC: those of the greatest key, at most `most`, except its own dependencies.

    order : rows by time; nics : of each row, its NIC's number; free : of rows that do not wait so
    ptr, on : CSR, what each row waits for by itself
    """
    pairs, count = np.empty((len(order), most, 2), np.int64), ctypes.c_int64()
    rows = _Rows(
        rows=len(nics), ordered=len(order), waits=len(on), most=most,
        order=order, nics=nics, keys=keys, free=free, ptr=ptr, on=on, pairs=pairs,
    )  # fmt: skip
    call("planning_order", rows, count)
    return pairs.reshape(-1, 2)[: count.value]
