"""What a stranger can do to a job on this machine, as figures: `.venv/bin/python -m benchmarks.attacks [ATTACK ...]`.

hub : silent connections, opened anew when dropped, to the hub of a job whose 4 ranks come one by one
flood : the same without an end, by a process that opens connections as fast as it can
sockets : silent connections to every Unix socket at which a rank listens, by another process all the time
orphans : how long ranks live when the process that has started them is killed at once
seals : what authentication costs a message, and a payload

Each prints seconds, the first three those of a job without strangers too. With PYTHONPATH, and from the folder, of
another checkout it attacks that one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.free_port import free_port
from tests.left_behind import gone

RANKS = 4
GIVE_UP_S = 90.0
"""A job that has not come to its end by then counts as stopped."""

JOB = f"uniform:servers={RANKS},nics=1,rate=1Gb/s"
LOCAL = f"""
from optcc.runtime import run_schedules
from tests.broken_schedules import nested
run_schedules({{"it": nested(ranks={RANKS}, rate=1 << 30)}}, repeat=1)
"""


def hub(strangers: int) -> str:
    """Seconds of a job whose hub has silent connections before its ranks come."""
    port = free_port()
    with contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(_rank(0, port))]
        stack.enter_context(_connection(port)).close()
        if strangers:
            stack.enter_context(_attacker(_silent, port, strangers))
            time.sleep(1.0)  # for the attacker to be there
        ranks += [stack.enter_context(_rank(rank, port)) for rank in range(1, RANKS)]
        return _seconds(ranks)


def flood() -> str:
    """Seconds of a job at whose hub strangers never end."""
    port = free_port()
    with contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(_rank(0, port))]
        stack.enter_context(_connection(port)).close()
        stack.enter_context(_attacker(_flood, port))
        ranks += [stack.enter_context(_rank(rank, port)) for rank in range(1, RANKS)]
        return _seconds(ranks)


def sockets(strangers: int) -> str:
    """Seconds of a local job at each of whose listening Unix sockets so many connections are silent."""
    with contextlib.ExitStack() as stack:
        if strangers:
            stack.enter_context(_attacker(_at_every_socket, strangers))
        return _seconds([stack.enter_context(_process([sys.executable, "-c", LOCAL]))])


def orphans() -> str:
    """Seconds that ranks live on after their parent was killed."""
    with _process([sys.executable, "-c", LOCAL]) as parent:
        while len(ranks := _children(parent.pid)) < RANKS:
            time.sleep(0.001)
        parent.kill()
        begin = time.monotonic()
        gone(ranks, within_s=GIVE_UP_S)
        return f"{time.monotonic() - begin:.2f} s"


def seals() -> str:
    """What it costs both ends of a message together, and of a mebibyte."""
    from optcc.runtime.control.seals import Seal

    def cost_s(message: bytes, times: int) -> float:
        ours, theirs = Seal(bytes(32)), Seal(bytes(32))
        begin = time.perf_counter()
        for _ in range(times):
            theirs.unseal(ours.seal(message))
        return (time.perf_counter() - begin) / times

    small_s, large_s = cost_s(bytes(100), 100_000), cost_s(bytes(1 << 20), 100)
    return f"{1e6 * small_s:.1f} us for 100 bytes, {1e3 * large_s:.2f} ms for 1 MiB"


def _rank(rank: int, port: int) -> Any:
    """`optcc run` as one rank of the job."""
    options = ["--rank", str(rank), "--world", str(RANKS), "--rendezvous", f"127.0.0.1:{port}"]
    return _process([sys.executable, "-m", "optcc", "run", JOB, "--size", "64KiB", "--repeat", "1", *options])


@contextlib.contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    environ = {**os.environ, "OPTCC_SECRET": "a secret of an attack, long enough"}
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def _attacker(what: Callable[..., None], *arguments: int) -> Iterator[None]:
    process = get_context("spawn").Process(target=what, args=arguments)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _seconds(ranks: list[subprocess.Popen[bytes]]) -> str:
    begin = time.monotonic()
    while None in (states := [rank.poll() for rank in ranks]):
        if time.monotonic() - begin > GIVE_UP_S:
            return f"not over after {GIVE_UP_S:.0f} s"
        time.sleep(0.01)
    return f"{'done' if not any(states) else 'failed'} after {time.monotonic() - begin:.1f} s"


def _connection(port: int) -> socket.socket:
    """As soon as the hub listens."""
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port), 10)
        time.sleep(0.01)


def _silent(port: int, strangers: int) -> None:
    """So many connections, each opened anew as soon as the hub has closed it."""
    held: list[socket.socket] = []
    while True:
        while len(held) < strangers:
            with contextlib.suppress(OSError):
                held.append(socket.create_connection(("127.0.0.1", port), 10))
        still = []
        for sock in held:
            sock.setblocking(False)
            try:
                ended = not sock.recv(4096)
            except BlockingIOError:
                ended = False
            except OSError:
                ended = True
            if ended:
                sock.close()
            else:
                still.append(sock)
        held = still
        time.sleep(0.001)


def _flood(port: int) -> None:
    opened: list[socket.socket] = []
    while True:
        with contextlib.suppress(OSError):
            opened.append(socket.create_connection(("127.0.0.1", port), 10))
        if len(opened) > 256:
            opened.pop(0).close()


def _at_every_socket(strangers: int) -> None:
    """Connect to every abstract socket that listens here, as soon as it does."""
    seen: dict[str, list[socket.socket]] = {}
    while True:
        listening = set()
        for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
            fields = line.split()
            if len(fields) == 8 and fields[3] == "00010000" and fields[7].startswith("@") and len(fields[7]) == 6:
                listening.add(fields[7])  # autobind gives names of five hexadecimal digits
        for name in listening - seen.keys():
            seen[name] = []
            for _ in range(strangers):
                sock = socket.socket(socket.AF_UNIX)
                sock.setblocking(False)
                with contextlib.suppress(OSError):
                    sock.connect(b"\0" + name[1:].encode())
                seen[name].append(sock)


def _children(pid: int) -> tuple[int, ...]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rsplit(")", 1)[1].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return tuple(found)


ATTACKS: dict[str, Callable[[], list[tuple[str, str]]]] = {
    "hub": lambda: [(f"{n} silent connections to the hub", hub(n)) for n in (0, 64, 1000)],
    "flood": lambda: [("connections to the hub without an end", flood())],
    "sockets": lambda: [(f"{n} silent connections to each rank's socket", sockets(n)) for n in (0, 5, 200)],
    "orphans": lambda: [("parent killed at start: its ranks live for", orphans())],
    "seals": lambda: [("to seal and to check", seals())],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=", ".join(ATTACKS))
    for name in parser.parse_args().attacks or ATTACKS:
        for what, seen in ATTACKS[name]():
            print(f"{what}: {seen}", flush=True)


if __name__ == "__main__":
    main()
