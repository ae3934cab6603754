"""A server and its NICs, as values; and what a failure leaves of a NIC.

Rates are exact (`Fraction`, bytes per second).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from numbers import Integral
from typing import Annotated

from optcc.errors import InputError
from optcc.values.json_records import LAST, Called
from optcc.values.json_types import Index, Name, Whole
from optcc.values.units import Quantity, as_rate, format_rate, parse_fraction, parse_rate

MAX_COUNT = 2**16
"""Servers of a preset, NICs and GPUs of a server."""


@dataclass(frozen=True)
class Nic:
    """One network interface, full duplex. Rates may be given as text, too, such as "400Gb/s".

    out_rate : bytes per second that it sends, 0 if it is dead; in_rate : bytes per second that it receives
    rail : the switch plane; None: its place among the server's NICs
    gpu : the GPU that it sits beside, where known
    """

    name: Name
    out_rate: Annotated[Fraction, Called("out")]
    in_rate: Annotated[Fraction, Called("in")]
    rail: Index | None = None
    gpu: Index | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "NIC")
        object.__setattr__(self, "out_rate", as_rate(self.out_rate, f"{self.name}.out_rate"))
        object.__setattr__(self, "in_rate", as_rate(self.in_rate, f"{self.name}.in_rate"))

    @property
    def alive(self) -> bool:
        """Able to carry traffic in at least one direction."""
        return self.out_rate > 0 or self.in_rate > 0


@dataclass(frozen=True)
class Server:
    """A server: its NICs, its GPU count, its pod.

    nics : in the order of their places, with unique names; gpus : how many; pod : its name, None: in no pod
    nvlink_rate : bytes per second of one GPU's NVLink port, each way, 0 if none is described; also text such as
        "450GB/s"
    """

    name: Name
    nics: Annotated[tuple[Nic, ...], LAST]
    gpus: Annotated[int, Whole(1, MAX_COUNT)] = 1
    nvlink_rate: Fraction = field(default=Fraction(0))
    pod: Name | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "server")
        object.__setattr__(self, "nvlink_rate", as_rate(self.nvlink_rate, f"{self.name}.nvlink_rate"))
        seen: set[str] = set()
        for nic in self.nics:
            if nic.name in seen:
                raise InputError("two NICs of one name", where=self.name, expected="unique NIC names", got=nic.name)
            seen.add(nic.name)
        if self.gpus < 1:
            raise InputError("no GPU", where=self.name, expected="gpus >= 1", got=self.gpus)
        if self.gpus > MAX_COUNT:
            raise InputError("too many GPUs", where=self.name, expected=f"at most {MAX_COUNT}", got=self.gpus)
        for nic in self.nics:
            if nic.gpu is not None and not 0 <= nic.gpu < self.gpus:
                expected = f"gpu 0 to {self.gpus - 1}"
                raise InputError("no such GPU", where=f"{self.name}/{nic.name}", expected=expected, got=nic.gpu)
        if self.pod is not None:
            check_name(self.pod, "pod")

    def gpu_of(self, nic: int) -> int:
        """The GPU that NIC number `nic` sits beside: as described, else dealt out evenly in order."""
        home = self.nics[nic].gpu
        return home if home is not None else nic * self.gpus // len(self.nics)

    @property
    def out_rate(self) -> Fraction:
        """Sum of live NIC rates out of the server, bytes per second."""
        return sum((nic.out_rate for nic in self.nics), Fraction(0))

    @property
    def in_rate(self) -> Fraction:
        """Sum of live NIC rates into the server, bytes per second."""
        return sum((nic.in_rate for nic in self.nics), Fraction(0))


def check_name(name: str, what: str) -> None:
    """Raise InputError for what is no name of a server, NIC or pod.

    Names are written SERVER/NIC=FRACTION on the command line and shown on terminals and in figures.
    """
    if not (isinstance(name, str) and 0 < len(name) <= 255 and name.isprintable() and not set(name) & set(" /=")):
        expected = "1 to 255 printable characters without space, '/' and '='"
        raise InputError(f"not a {what} name", where=what, expected=expected, got=str(name)[:255])


def check_count(count: int, where: str) -> None:
    """Raise InputError for a number of servers, NICs or GPUs that is none, below 1 or above `MAX_COUNT`."""
    if isinstance(count, bool) or not isinstance(count, Integral) or not 1 <= count <= MAX_COUNT:
        raise InputError("count out of range", where=where, expected=f"1 to {MAX_COUNT}", got=count)


def rates_left(where: str, nic: Nic, left: Quantity) -> tuple[Fraction, Fraction]:
    """What is left of a NIC's rates (out, in), in bytes per second; a rate that is left holds for both ways."""
    if isinstance(left, str):
        text = left
        try:
            left = parse_fraction(text, where)
        except InputError as error:
            try:
                rate = parse_rate(text)
            except InputError:
                expected = f"{error.expected}, or a rate such as 150Gb/s"
                raise InputError("not what is left", where=where, expected=expected, got=error.got) from None
            if rate > max(nic.out_rate, nic.in_rate):
                expected = f"at most {format_rate(max(nic.out_rate, nic.in_rate))}"
                raise InputError("more than the NIC's rate", where=where, expected=expected, got=text) from None
            return min(rate, nic.out_rate), min(rate, nic.in_rate)
    if not isinstance(left, int | float | Fraction) or not 0 <= left <= 1:
        raise InputError("fraction left out of range", where=where, expected="0 to 1", got=str(left))
    fraction = Fraction(str(left)) if isinstance(left, float) else Fraction(left)
    return nic.out_rate * fraction, nic.in_rate * fraction


def as_named(nic: str, server: Server) -> str:
    """The name of a NIC as `server` has it: port 1 is NAME here, where NCCL_IB_HCA may write NAME:1."""
    names = {x.name for x in server.nics}
    return nic.removesuffix(":1") if nic not in names and nic.removesuffix(":1") in names else nic
