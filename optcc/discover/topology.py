"""What every reader returns, and what the readers share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import groupby

from optcc.errors import InputError
from optcc.values.cluster import Cluster
from optcc.values.units import format_rate

UNUSED_NIC_RATE = "--nic-rate was not used: the topology gives the rate of every NIC."


@dataclass(frozen=True)
class Assumption:
    """Something that the source does not say, or that was left out: where, what is taken instead and why, the way out.

    fix : what to pass, or to write, when the assumption is wrong; empty where nothing can be passed
    """

    where: str
    what: str
    fix: str = ""

    def __str__(self) -> str:
        said = f"{self.where}: {self.what}" if self.where else self.what
        return f"{said.rstrip('.')}. To correct it: {self.fix.rstrip('.')}." if self.fix else f"{said.rstrip('.')}."


class Assumed:
    """Assumptions as they are made; those that differ in nothing but the place become one."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], list[str]] = {}

    def add(self, where: str, what: str, fix: str = "") -> None:
        """One more, with the fields of an `Assumption`."""
        self._places.setdefault((what, fix), []).append(where)

    def all(self) -> tuple[Assumption, ...]:
        """Those made so far, in the order in which they were first made."""
        return tuple(Assumption(_together(places), what, fix) for (what, fix), places in self._places.items())


def _together(places: list[str]) -> str:
    return places[0] if len(places) == 1 else f"{places[0]} and {len(places) - 1} more"


ENGINE = "native"
"""What handles chunks, as files of measurements name it."""


@dataclass(frozen=True)
class Measured:
    """How the rates of a file were measured, if they were; see `optcc calibrate`.

    date : of the measurement, YYYY-MM-DD; transport : local (emulated NICs), tcp or verbs
    path : what handled chunks, ENGINE, or what there was before it (compiled, python); empty: not known
    alpha_s, per_chunk_s : seconds from NIC to NIC, and of a chunk at a port beside its bytes; None: not measured
    spread : of repeated measurements of a NIC, the median over NICs, as a fraction of its rate
    nameplate : by SERVER/NIC, bytes per second
    """

    date: str
    transport: str
    alpha_s: Fraction | None = None
    per_chunk_s: Fraction | None = None
    spread: Fraction = Fraction(0)
    nameplate: dict[str, Fraction] = field(default_factory=dict, hash=False)
    path: str = ""

    def of_runtime(self, transport: str) -> bool:
        """Whether it was measured with the engine that runs today, over this transport."""
        return self.transport == transport and self.path in ("", ENGINE)


@dataclass(frozen=True)
class Topology:
    """A cluster as read.

    assumed : what the source did not say, or said of things that were left out
    read : what the source did say, a line each, for people
    measured : set where the rates were measured rather than taken from a nameplate
    """

    cluster: Cluster
    assumed: tuple[Assumption, ...] = ()
    read: tuple[str, ...] = ()
    measured: Measured | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed, a sentence or two each."""
        return tuple(str(a) for a in self.assumed)

    def as_json(self) -> dict[str, object]:
        """Read, assumed, how to correct it, and the servers, as JSON values."""
        assumed = [{"where": a.where, "assumed": a.what, "to_correct": a.fix} for a in self.assumed]
        servers = [
            {
                "name": server.name,
                "gpus": server.gpus,
                "nvlink_bytes_per_s": float(server.nvlink_rate),
                "nics": [
                    {
                        "name": nic.name,
                        "out_bytes_per_s": float(nic.out_rate),
                        "in_bytes_per_s": float(nic.in_rate),
                        "rail": nic.rail,
                        "gpu": nic.gpu,
                    }
                    for nic in server.nics
                ],
            }
            for server in self.cluster.servers
        ]
        return {"read": list(self.read), "assumed": assumed, "servers": servers}


def describe(cluster: Cluster) -> tuple[str, ...]:
    """The cluster in words, servers that are alike together: ``server0 to server3: 8 GPUs, 8 NICs of 400Gb/s``."""
    lines = []
    for _, alike in groupby(cluster.servers, key=lambda s: (s.gpus, s.nvlink_rate, s.nics, s.pod)):
        servers = list(alike)
        first = servers[0]
        names = first.name if len(servers) == 1 else f"{first.name} to {servers[-1].name} ({len(servers)})"
        sizes = Counter((nic.out_rate, nic.in_rate) for nic in first.nics)
        nics = ", ".join(f"{counted(n, 'NIC')} of {_both(*rates)}" for rates, n in sizes.items())
        nvlink = f", NVLink or xGMI {format_rate(first.nvlink_rate)} per GPU" if first.nvlink_rate else ""
        lines.append(f"{names}: {counted(first.gpus, 'GPU')}{nvlink}, {nics}")
    return tuple(lines)


BELOW = Fraction(98, 100)
"""A NIC measured at less than this part of its nameplate is worth naming: what is above is headers and noise."""


def measured_line(cluster: Cluster, measured: Measured) -> str:
    """``rates measured 2026-11-20 (verbs), nameplate 400Gb/s; below it: server1/mlx5_2 at 252Gb/s``."""
    rates = {f"{s.name}/{n.name}": min(n.out_rate, n.in_rate) for s in cluster.servers for n in s.nics}
    plates = {name: rate for name, rate in measured.nameplate.items() if name in rates}
    below = [f"{name} at {format_rate(rates[name])}" for name, plate in plates.items() if rates[name] < plate * BELOW]
    kind = "over emulated NICs" if measured.transport == "local" else measured.transport
    plate = ", ".join(format_rate(rate) for rate in sorted(set(plates.values()), reverse=True)[:4])
    named = f", nameplate {plate}" if plate else ""
    return f"rates measured {measured.date} ({kind}){named}" + (f"; below it: {listed(below)}" if below else "")


def counted(number: int, noun: str) -> str:
    """``1 GPU``, ``8 GPUs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _both(out: Fraction, into: Fraction) -> str:
    return format_rate(out) if out == into else f"{format_rate(out)} out and {format_rate(into)} in"


def listed(names: Sequence[str], most: int = 8) -> str:
    """``a, b, c``, of many the first ones."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


@contextmanager
def located(where: str) -> Iterator[None]:
    """Put `where` before the place that an InputError of the body names."""
    try:
        yield
    except InputError as error:
        place = f"{where}: {error.where}" if error.where else where
        raise InputError(error.what, where=place, expected=error.expected, got=error.got, hint=error.hint) from None


def deal(near: Sequence[Sequence[int]]) -> list[int | None]:
    """For each NIC one of its nearest GPUs, `near[i]`, the one with the fewest NICs so far; None where none is near."""
    load = Counter[int]()
    dealt: list[int | None] = [None] * len(near)
    for several in (False, True):  # those without a choice first
        for nic, gpus in enumerate(near):
            if gpus and (len(gpus) > 1) == several:
                beside = min(gpus, key=lambda g: (load[g], g))
                load[beside] += 1
                dealt[nic] = beside
    return dealt
