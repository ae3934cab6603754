"""A fabric that is played: made, changed while programs run over it, looked at.

Whatever opens it finds its NICs as real ones; see docs/fabric.md. Rates are bytes per second, times seconds.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from ctypes import byref, c_uint32, c_uint64
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Literal, Self

from optcc.errors import InputError
from optcc.machine.rdma import PLAYED_FABRIC, played_host
from optcc.values.cluster import Cluster, Nic, Server

# The played libibverbs, compiled: once for each version of its source, into the user's cache.

SOURCE = Path(__file__).parent / "source"
NAME = "libibverbs.so.1"
_HANDLE, _GPU = "played.so", "played_gpu"
"""What makes and changes fabrics, by itself: whoever loads it has not loaded a libibverbs; the process that copies GPU
memory for a NIC."""
_FILES = ("fabric.c", "nic.c", "verbs.c", "gpu.c")
_FLAGS = ("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Wshadow", "-pthread")
_BOUND_S = 300


def build(folder: Path, extra: Sequence[str] = ()) -> Path:
    """Compile into `folder`, which becomes one for LD_LIBRARY_PATH. Raises InputError where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise InputError(
            "no C compiler", where="optcc fabric", expected="cc", got="none on the path", hint="apt install gcc"
        )
    folder.mkdir(parents=True, exist_ok=True)
    shared = ("-shared", "-fPIC")
    link = (*shared, f"-Wl,--version-script={SOURCE / 'verbs.map'}", f"-Wl,-soname,{NAME}")
    made_of = ((_HANDLE, _FILES[:1], shared), (_GPU, ("played_gpu.c", "fabric.c"), ()), (NAME, _FILES, (*link, *extra)))
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        for name, files, how in made_of:
            made = Path(inside) / name
            command = [compiler, *_FLAGS, *how, *(str(SOURCE / file) for file in files), "-ldl", "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_BOUND_S, check=False)
            if done.returncode:
                raise InputError(
                    "does not compile", where=str(SOURCE), expected="a C11 compiler", got=done.stderr[:400]
                )
            made.rename(folder / name)
    other = folder / "libibverbs.so"  # some programs ask for this name first
    if not other.is_symlink():
        other.symlink_to(NAME)
    return folder


@cache
def library() -> Path:
    """The folder with the library, compiled where it is not yet: three seconds. Raises InputError."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    text = b"".join(path.read_bytes() for path in sorted(SOURCE.iterdir()))
    folder = home / "optcc" / f"fabric-{hashlib.sha256(text).hexdigest()[:16]}"
    return folder if (folder / "libibverbs.so").is_symlink() else build(folder)


@cache
def calls() -> ctypes.CDLL:
    """What makes and changes fabrics."""
    return ctypes.CDLL(str(library() / _HANDLE))


# Fabrics

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


# The network of this process' host on a played fabric: what lab/network.py does to soft NICs, by the same names.
#
# A NIC is its number on the host: 3 of rxe3.


class PlayedNetwork:
    """As the environment names it. Raises InputError where it names none."""

    def __init__(self) -> None:
        self._host = played_host()
        self._fabric = PlayedFabric(os.environ.get(PLAYED_FABRIC, ""))

    def nics(self) -> int:
        """How many NICs there are."""
        return self._fabric.nics

    def cut(self, nic: int, cable: bool = False) -> None:
        """Take a NIC's link down; its cable is the same thing here."""
        self._fabric.down(self._name(nic))

    def restore(self, nic: int) -> None:
        """Bring it up."""
        self._fabric.up(self._name(nic))

    def whole(self, which: Iterable[int] | None = None) -> None:
        """Mend everything: links up, no losses, rates unlimited."""
        for nic in range(self.nics()) if which is None else which:
            self._fabric.up(self._name(nic))
            self.rate(nic, 0)

    def rate(self, nic: int, bits_per_s: float) -> None:
        """Let a NIC send and receive at this rate; 0: as fast as the machine is."""
        self._fabric.set(self._name(nic), rate=round(bits_per_s / 8))

    def lose(
        self,
        nic: int,
        direction: Literal["out", "in", "both"] = "out",
        packets: Literal["all", "data", "acks"] = "all",
        one_in: int = 1,
    ) -> None:
        """Lose, silently, packets that leave a NIC or arrive at it: one in so many, at random."""
        self._fabric.lose(self._name(nic), way=direction, what=packets, one_in=one_in)

    def heal(self, nic: int) -> None:
        """Lose no more."""
        self._fabric.lose(self._name(nic), one_in=0)

    def troubles(self) -> dict[str, int]:
        """Counts that stand still while every frame arrives, in order and once."""
        found = dict.fromkeys(("lost", "sent_again", "not_ready"), 0)
        for nic in range(self.nics()):
            counters = self._fabric.nic(self._name(nic)).counters
            found = {name: count + counters[name] for name, count in found.items()}
        return found

    def held(self) -> str:
        """What is open: the rings of queue pairs, and devices."""
        rings = sorted(path.name for path in self._fabric.folder.glob("q*"))
        return f"{self._fabric.opened()} devices, {' '.join(rings)}"

    def readdress(self, nic: int) -> None:
        """Give a NIC its next address, as a lease that ran out would."""
        self._fabric.readdress(self._name(nic))

    def _name(self, nic: int) -> str:
        return f"host{self._host}/{self._fabric.names[nic]}"
