"""A fabric that is played: made, changed while programs run over it, looked at.

Whatever opens it finds its NICs as real ones; see docs/fabric.md. Rates are bytes per second, times seconds.
"""

from __future__ import annotations

import os
import shutil
from ctypes import byref, c_uint32, c_uint64
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal, Self

from optcc.errors import InputError
from optcc.fabric.library import calls, library
from optcc.values.cluster import Cluster, Nic, Server

FOLDER = Path("/dev/shm/optcc-fabric")
"""Where a fabric is when nothing else is said."""

State = Literal["up", "down", "gone"]
Losses = Literal["all", "data", "acks"]
_STATES: tuple[State, ...] = ("up", "down", "gone")
_LOSSES: tuple[Losses, ...] = ("all", "data", "acks")
_COUNTERS = ("bytes_out", "bytes_in", "lost", "sent_again", "not_ready")


@dataclass(frozen=True)
class PlayedNic:
    """A NIC as it is now.

    rate_out, rate_in : bytes per second, 0 for as fast as the machine is; latency_s, jitter_s : seconds
    lose_out, lose_in : one frame in so many is lost, silently; 0 for none, 1 for all
    counters : bytes that left and came, frames lost, times that frames were sent again, receives that were missing
    """

    name: str
    rate_out: int
    rate_in: int
    latency_s: float
    jitter_s: float
    state: State
    lose_out: int
    lose_in: int
    counters: dict[str, int]

    @property
    def left(self) -> tuple[Fraction, Fraction]:
        """Bytes per second that can leave and come, 0 where the NIC is down or loses all. Raises InputError without
        a rate."""
        if not self.rate_out or not self.rate_in:
            raise InputError(
                "has no rate", where=self.name, expected="rates, for a bound", got="as fast as the machine is",
                hint="optcc fabric make --rate 100Gb/s, or optcc fabric set.",
            )  # fmt: skip
        up = self.state == "up"
        out = self.rate_out if up and self.lose_out != 1 else 0
        into = self.rate_in if up and self.lose_in != 1 else 0
        return Fraction(out), Fraction(into)


class PlayedFabric:
    """A fabric in a folder. NICs go by ``host1/mlx5_0``. Raises InputError for what there is not."""

    def __init__(self, folder: str | Path = FOLDER) -> None:
        self.folder = Path(folder)
        shape = (c_uint32 * 4)()
        self._call("played_shape", "the fabric", shape)
        self.hosts, self.nics, self.roce = int(shape[0]), int(shape[1]), bool(shape[2])
        self.names = tuple(sorted(os.listdir(self.folder / "host0/sys/class/infiniband"), key=_number))

    def opened(self) -> int:
        """How many devices are open, in all processes."""
        shape = (c_uint32 * 4)()
        self._call("played_shape", "the fabric", shape)
        return int(shape[3])

    @classmethod
    def make(
        cls,
        folder: str | Path = FOLDER,
        *,
        hosts: int = 2,
        nics: int = 1,
        rate: int = 0,
        latency_s: float = 0.0,
        roce: bool = False,
        name: str = "mlx5_",
        seed: int = 1,
    ) -> Self:
        """A new one. rate : of every NIC both ways, bytes per second; roce : NICs go by GID, and not by LID."""
        path = Path(folder).absolute()
        failed = calls().played_make(
            os.fsencode(path), hosts, nics, name.encode(), c_uint64(rate), _nanoseconds(latency_s), roce, c_uint64(seed)
        )
        if failed:
            raise InputError(
                f"cannot be made: {os.strerror(failed)}",
                where=str(path),
                expected="a folder that does not exist, in a folder that does; 1024 NICs at most",
                got=f"{hosts} hosts of {nics} NICs",
                hint="`optcc fabric remove` removes an old one.",
            )
        return cls(path)

    def remove(self) -> None:
        """Remove it. What still runs over it goes on, cut off from what begins later."""
        shutil.rmtree(self.folder)

    def env(self, host: int) -> dict[str, str]:
        """What a program's environment must have to be on this host."""
        if not 0 <= host < self.hosts:
            raise InputError("no such host", where=str(self.folder), expected=f"0 to {self.hosts - 1}", got=host)
        paths = [str(library()), os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            "LD_LIBRARY_PATH": ":".join(dict.fromkeys(filter(None, ":".join(paths).split(":")))),
            "PLAYED_FABRIC": str(self.folder),
            "PLAYED_HOST": str(host),
        }

    def every(self) -> list[str]:
        """The names of all NICs."""
        return [f"host{host}/{name}" for host in range(self.hosts) for name in self.names]

    def nic(self, name: str) -> PlayedNic:
        """A NIC as it is now."""
        return PlayedNic(
            name,
            rate_out=self._get(name, "rate_out"),
            rate_in=self._get(name, "rate_in"),
            lose_out=self._get(name, "lose_out"),
            lose_in=self._get(name, "lose_in"),
            latency_s=self._get(name, "latency") * 1e-9,
            jitter_s=self._get(name, "jitter") * 1e-9,
            state=_STATES[self._get(name, "state")],
            counters={field: self._get(name, field) for field in _COUNTERS},
        )

    def set(
        self,
        name: str,
        *,
        rate: int | None = None,
        rate_out: int | None = None,
        rate_in: int | None = None,
        latency_s: float | None = None,
        jitter_s: float | None = None,
    ) -> None:
        """Change a NIC, while bytes fly."""
        for field, value in (
            ("rate_out", rate if rate_out is None else rate_out),
            ("rate_in", rate if rate_in is None else rate_in),
            ("latency", None if latency_s is None else _nanoseconds(latency_s).value),
            ("jitter", None if jitter_s is None else _nanoseconds(jitter_s).value),
        ):
            if value is not None:
                self._set(name, field, value)

    def down(self, name: str, *, gone: bool = False) -> None:
        """The link goes down, which programs are told. gone : the device itself; it does not come back to them."""
        self._set(name, "state", _STATES.index("gone" if gone else "down"))

    def up(self, name: str) -> None:
        """The link is there, and nothing is lost any more."""
        for field in ("lose_out", "lose_in", "lose_what", "state"):
            self._set(name, field, 0)

    def lose(
        self, name: str, *, way: Literal["out", "in", "both"] = "both", what: Losses = "all", one_in: int = 1
    ) -> None:
        """Lose what leaves a NIC or comes to it, silently: all of it, or one frame in so many, by the fabric's seed."""
        self._set(name, "lose_what", _LOSSES.index(what))
        for field in ("lose_out", "lose_in"):
            self._set(name, field, one_in if way in ("both", field.removeprefix("lose_")) else 0)

    def path(self, name: str, to: str, *, lost: bool = True) -> None:
        """What goes from one NIC to another is lost, silently, or no more. The way back is another."""
        self._call("played_cut", f"{name} or {to}", *self._place(name), *self._place(to), int(lost))

    def readdress(self, name: str) -> None:
        """Give a NIC another IP address, as a lease that ran out would. For RoCE."""
        self._set(name, "address", self._get(name, "address") + 1)

    def cluster(self) -> Cluster:
        """As it is now, for bounds and plans: a server for each host, with the rates that NICs have left."""
        servers = []
        for host in range(self.hosts):
            nics = []
            for name in self.names:
                out, into = self.nic(f"host{host}/{name}").left
                nics.append(Nic(name, out, into))
            servers.append(Server(f"server{host}", tuple(nics)))
        return Cluster(tuple(servers))

    def _place(self, name: str) -> tuple[int, int]:
        host, _, nic = name.partition("/")
        number = host.removeprefix("host").removeprefix("server")
        if nic not in self.names or not number.isdecimal() or int(number) >= self.hosts:
            raise InputError("no such NIC", where=str(self.folder), expected=f"host0/{self.names[0]} or so", got=name)
        return int(number), self.names.index(nic)

    def _get(self, name: str, field: str) -> int:
        value = c_uint64()
        self._call("played_get", name, *self._place(name), field.encode(), byref(value))
        return value.value

    def _set(self, name: str, field: str, value: int) -> None:
        if not 0 <= value < 2**63:
            raise InputError("out of range", where=f"{name} {field}", expected="0 to 2^63", got=value)
        self._call("played_set", name, *self._place(name), field.encode(), c_uint64(value))

    def _call(self, function: str, what: str, *arguments: object) -> None:
        failed = getattr(calls(), function)(os.fsencode(self.folder), *arguments)
        if failed:
            raise InputError(
                f"{what}: {os.strerror(failed)}",
                where=str(self.folder),
                expected="a fabric of this version of optcc",
                got="another one, or none",
                hint="`optcc fabric make` makes one.",
            )


def _nanoseconds(seconds: float) -> c_uint64:
    return c_uint64(round(seconds * 1e9))


def _number(name: str) -> tuple[int, str]:
    digits = "".join(letter for letter in name[::-1] if letter.isdecimal())
    return len(digits), name
