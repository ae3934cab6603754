"""Two network namespaces joined by pairs of veth, a rail each, whose links go down and whose rates are set: for tests
and benchmarks of wires between machines. Needs root, and ip and tc of iproute2."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWNET = 0x40000000


def missing() -> str:
    """What this machine lacks for it; empty: nothing."""
    if os.geteuid():
        return "needs root, for network namespaces"
    for program in ("ip", "tc"):
        if not shutil.which(program):
            return f"needs {program}: apt install iproute2"
    done = subprocess.run(
        ["ip", "netns", "add", f"optcc-{os.getpid()}-try"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return f"needs network namespaces: {done.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", f"optcc-{os.getpid()}-try"], check=True)
    return ""


class Namespaces:
    """Namespaces 0 and 1, closed by `with`. NIC i of either is the device rail{i} with address 10.77.i.(1 + number)."""

    def __init__(self, rails: int) -> None:
        self.rails = rails
        self.names = [f"optcc-{os.getpid()}-{number}" for number in range(2)]

    def __enter__(self) -> Namespaces:
        for name in self.names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        for rail in range(self.rails):
            here, there = self.names
            _ip("-n", here, "link", "add", f"rail{rail}", "type", "veth", "peer", "name", f"rail{rail}", "netns", there)
            for number, name in enumerate(self.names):
                _ip("-n", name, "addr", "add", f"{self.address(number, rail)}/24", "dev", f"rail{rail}")
                _ip("-n", name, "link", "set", f"rail{rail}", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def address(self, number: int, rail: int) -> str:
        return f"10.77.{rail}.{number + 1}"

    def set_up(self, number: int, rail: int, up: bool) -> None:
        """The device of one end; the other loses its carrier, too."""
        _ip("-n", self.names[number], "link", "set", f"rail{rail}", "up" if up else "down")

    def cut(self, number: int, rail: int, up: bool) -> None:
        """What one end sends is lost, or is no more: it goes to nobody's hardware address."""
        far = (self.address(1 - number, rail), "dev", f"rail{rail}")
        if up:
            _ip("-n", self.names[number], "neigh", "del", *far)
        else:
            _ip("-n", self.names[number], "neigh", "replace", far[0], "lladdr", "02:00:00:00:00:01", *far[1:])

    def set_rate(self, rail: int, rate: str) -> None:
        """Both ways; as tc writes it, empty: no limit."""
        for name in self.names:
            tc = ("tc", "-n", name, "qdisc")
            if rate:
                limits = ("tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
                subprocess.run([*tc, "replace", "dev", f"rail{rail}", "root", *limits], check=True)
            else:
                subprocess.run([*tc, "del", "dev", f"rail{rail}", "root"], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@contextmanager
def entered(name: str) -> Iterator[None]:
    """In that namespace: sockets that this thread makes are there."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(path: Path) -> None:
        with path.open() as file:
            if libc.setns(file.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter {path}")

    with Path(f"/proc/self/task/{threading.get_native_id()}/ns/net").open() as before:
        enter(Path("/run/netns") / name)
        try:
            yield
        finally:
            if libc.setns(before.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "cannot go back")
