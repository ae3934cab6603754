"""Faults in virtual time: a NIC that slows down or dies during a run, and where its traffic goes then (hot repair).

A port that dies loses what it is serving, in both directions. Until that is noticed, peers go on sending to it in vain
and its own traffic waits. Then all lost stripes are sent again, whole. They and all later ones go by the backup: the
next live NIC of the same rank, as in NCCL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from optcc.errors import InputError, some
from optcc.schedule import Lane, Port, Schedule
from optcc.values.cluster import Cluster

TICKS_PER_S = 10**12
LONGEST_S = 10**6
"""Times beyond this many seconds are refused: sums of them stay far inside 64-bit ticks."""
DETECT_S = Fraction(1, 1000)
"""Seconds from a NIC's death to the backup taking over. A guess for a link whose loss the NIC reports by itself. Where
only retries show it, InfiniBand waits 4.096 us * 2^timeout for each (NCCL's documentation of NCCL_IB_TIMEOUT and
NCCL_IB_RETRY_CNT: 20 and 7 unless set), which is half a minute."""


@dataclass(frozen=True)
class Fault:
    """From `at_s` on the port named `port` has the fraction `left` of the rates it started with, both ways; 0: it dies.

    `detect_s` seconds after a death the sender of everything that it hit knows of it.
    """

    port: str
    at_s: float | Fraction
    left: float | Fraction = Fraction(0)
    detect_s: float | Fraction = DETECT_S

    def __post_init__(self) -> None:
        for name, value, most in (("at_s", self.at_s, LONGEST_S), ("detect_s", self.detect_s, LONGEST_S)):
            if not 0 <= value <= most:
                raise InputError("time out of range", where=f"{self.port}.{name}", expected=f"0 to {most} s", got=value)
        if not 0 <= self.left <= 1:
            raise InputError("fraction left out of range", where=self.port, expected="0 to 1", got=str(self.left))


@dataclass(frozen=True, eq=False)
class FaultTables:
    """Faults as the simulator's loop takes them, and the lanes that detours may use.

    changes : port -> (ticks, rate out, rate in), ascending; deaths : port -> (ticks, ticks when noticed)
    notices : ticks, ascending, after which lanes change; lanes : the lanes given, then backups
    detour : int32, shape (notices + 1, lanes given), the lane to use, -1: none is left
    """

    changes: dict[int, list[tuple[int, float, float]]]
    deaths: dict[int, tuple[int, int]]
    notices: list[int]
    lanes: tuple[Lane, ...]
    detour: NDArray[np.int32]


def check_alive(faults: Sequence[Fault], cluster: Cluster) -> None:
    """Raise InputError for a NIC that its server does not have, or that is dead in `cluster` already.

    For faults of NICs; servers that `cluster` does not have are left to `fault_tables`.
    """
    servers = {server.name: server for server in cluster.servers}
    for fault in faults:
        name, _, nic = fault.port.partition("/")
        if name not in servers:
            continue
        alive = [each.name for each in servers[name].nics if each.alive]
        if nic not in alive:
            dead = any(each.name == nic for each in servers[name].nics)
            raise InputError(
                "already dead in this plan" if dead else "no such NIC",
                where="--fault",
                expected=f"a live NIC of {name}: {', '.join(f'{name}/{each}' for each in alive)}",
                got=fault.port,
            )


def fault_tables(schedule: Schedule, lanes: Sequence[Lane], faults: Sequence[Fault]) -> FaultTables:
    """Raises InputError for a port that the schedule does not have and for rates that rise again."""
    index = {port.name: i for i, port in enumerate(schedule.ports)}
    changes: dict[int, list[tuple[int, float, float]]] = {}
    deaths: dict[int, tuple[int, int]] = {}
    left: dict[int, Fraction] = {}
    for fault in sorted(faults, key=lambda fault: fault.at_s):
        if fault.port not in index:
            raise InputError("no such port", where="faults", expected=f"one of {some(list(index))}", got=fault.port)
        at, port, p = _to_ticks(fault.at_s), schedule.ports[index[fault.port]], index[fault.port]
        fraction = Fraction(str(fault.left)) if isinstance(fault.left, float) else Fraction(fault.left)
        if port.nvlink and fraction == 0:
            expected = "a NIC, or more than 0 left"
            raise InputError("only NICs die", where=fault.port, expected=expected, hint="NVLink has no backup.")
        if fraction > left.get(p, Fraction(1)):
            raise InputError("a port that recovers", where=fault.port, expected=f"at most {left[p]}", got=str(fraction))
        left[p] = fraction
        rates = float(Fraction(port.out_rate) * fraction), float(Fraction(port.in_rate) * fraction)
        changes.setdefault(p, []).append((at, *rates))
        if fraction == 0 and p not in deaths:
            deaths[p] = (at, at + _to_ticks(fault.detect_s))
    order = sorted(deaths, key=lambda p: deaths[p][1])
    table, detour = _detours(schedule, lanes, order)
    known = sum(noticed == 0 for _, noticed in deaths.values())
    return FaultTables(changes, deaths, [deaths[p][1] for p in order[known:]], table, detour[known:])


def _to_ticks(seconds: float | Fraction) -> int:
    return round(Fraction(seconds) * TICKS_PER_S)


def _detours(
    schedule: Schedule, lanes: Sequence[Lane], dying: Sequence[int]
) -> tuple[tuple[Lane, ...], NDArray[np.int32]]:
    """Where each lane's traffic goes after each death."""
    table = list(lanes)
    index: dict[Lane, int] = {}
    rows = [np.arange(len(lanes), dtype=np.int32)]
    for count in range(1, len(dying) + 1):
        dead = set(dying[:count])
        row = rows[-1].copy()
        for i, lane in enumerate(lanes):
            if row[i] >= 0 and {table[row[i]].out, table[row[i]].into} & dead:
                backup = _backup(schedule, lane, dead)
                if backup is None:
                    row[i] = -1
                elif backup in index:
                    row[i] = index[backup]
                else:
                    row[i] = index[backup] = len(table)
                    table.append(backup)
        rows.append(row)
    return tuple(table), np.stack(rows)


def _backup(schedule: Schedule, lane: Lane, dead: set[int]) -> Lane | None:
    """The next live NIC of the rank in place of a dead one, with the other end where the rail allows it."""
    ports = schedule.ports
    a, b = ports[lane.out], ports[lane.into]
    outs = [p for p in _from(lane.out, a, ports) if p not in dead and ports[p].out_rate > 0]
    intos = [p for p in _from(lane.into, b, ports) if p not in dead and ports[p].in_rate > 0]
    if a.rail == b.rail:
        for out in outs:
            for into in intos:
                if ports[out].rail == ports[into].rail:
                    return Lane(out, into, lane.share, lane.links)
    # Ranks that meet over the spine: only the schedule knows which links join which of their ports.
    for route in schedule.routes:
        if (route.src, route.dst) == (a.rank, b.rank):
            for other in route.lanes:
                if other.out in outs and other.into in intos:
                    return other
    return None


def _from(first: int, port: Port, ports: tuple[Port, ...]) -> list[int]:
    """The NICs of a port's rank, in order from it on, round to the one before it."""
    mine = [p for p, other in enumerate(ports) if other.rank == port.rank and not other.nvlink]
    return [*(p for p in mine if p >= first), *(p for p in mine if p < first)]
