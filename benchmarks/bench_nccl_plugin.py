"""Unmodified torch and NCCL over the plugin: right numbers, NICs that break, and its time beside NCCL's own sockets.

``python benchmarks/bench_nccl_plugin.py`` wants torch with CUDA, one GPU and a C compiler, nothing else; it prints what
it found, ends with 0 where all was right, and writes no page. Every rank calls itself another host (NCCL_HOSTID), so
that NCCL takes the network between them, also where they share a GPU; NICs are addresses of loopback. So it says
nothing about real NICs. A NIC breaks by shutting its sockets.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 150
"""For one contender, start to end."""
MIB = 1 << 20
CONTENDERS = ("NCCL's sockets", "plugin", "plugin, NICs break")


def nics(rank: int) -> list[str]:
    return [f"127.0.{rank + 1}.{nic}" for nic in (2, 3)]


# --- a rank --------------------------------------------------------------------------------------------------------


class Saw(threading.Thread):
    """Breaks all connections of one of this rank's NICs, at random moments, until `stop`."""

    def __init__(self, rank: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.cuts = 0
        self._nics, self._draw, self._ended = nics(rank), random.Random(seed * 100 + rank), threading.Event()

    def run(self) -> None:
        while not self._ended.wait(self._draw.uniform(0.01, 0.3)):
            self.cuts += self._cut(self._draw.choice(self._nics))

    def stop(self) -> int:
        self._ended.set()
        self.join()
        return self.cuts

    @staticmethod
    def _cut(address: str) -> int:
        cut = 0
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # no socket, or gone, or not connected
                copy = os.dup(int(name))
                try:
                    one = socket.socket(fileno=copy)
                except OSError:
                    os.close(copy)
                    raise
                try:
                    if one.family == socket.AF_INET and one.getsockname()[0] == address and one.getpeername():
                        one.shutdown(socket.SHUT_RDWR)
                        cut += 1
                finally:
                    one.close()
        return cut


def check_calls(torch: Any, dist: Any, rank: int, world: int) -> int:
    """Collectives of whole numbers; returns how many. Raises AssertionError where one is wrong."""

    def numbers(count: int, of: int) -> Any:
        return (torch.arange(count, device="cuda", dtype=torch.int32) % 1009) * (of + 1)

    done = 0
    for count in (1, 3, 1000, 65537, MIB, 4 * MIB + 5):
        total = sum(of + 1 for of in range(world))
        mine = numbers(count, rank)
        dist.all_reduce(mine)
        assert torch.equal(mine, numbers(count, 0) * total), f"all_reduce of {count}"
        gathered = [torch.zeros(count, device="cuda", dtype=torch.int32) for _ in range(world)]
        dist.all_gather(gathered, numbers(count, rank))
        assert all(torch.equal(one, numbers(count, of)) for of, one in enumerate(gathered)), f"all_gather of {count}"
        part = torch.zeros(count, device="cuda", dtype=torch.int32)
        dist.reduce_scatter(part, [numbers(count, rank) + of for of in range(world)])
        assert torch.equal(part, numbers(count, 0) * total + rank * world), f"reduce_scatter of {count}"
        told = numbers(count, rank)
        dist.broadcast(told, world - 1)
        assert torch.equal(told, numbers(count, world - 1)), f"broadcast of {count}"
        came = torch.zeros(count * world, device="cuda", dtype=torch.int32)
        dist.all_to_all_single(came, numbers(count, rank).repeat(world))
        assert torch.equal(came, torch.cat([numbers(count, of) for of in range(world)])), f"all_to_all of {count}"
        got = torch.zeros(count, device="cuda", dtype=torch.int32)
        calls = [
            dist.P2POp(dist.isend, numbers(count, rank), (rank + 1) % world),
            dist.P2POp(dist.irecv, got, (rank - 1) % world),
        ]
        for call in dist.batch_isend_irecv(calls):
            call.wait()
        torch.cuda.synchronize()
        assert torch.equal(got, numbers(count, (rank - 1) % world)), f"send and receive of {count}"
        done += 6
    return done


def time_of(torch: Any, dist: Any, nbytes: int, calls: int = 10) -> float:
    """Median seconds of an all_reduce."""
    data = torch.ones(nbytes // 4, device="cuda")
    took = []
    for call in range(calls + 3):
        torch.cuda.synchronize()
        dist.barrier()
        begun = time.perf_counter()
        dist.all_reduce(data)
        torch.cuda.synchronize()
        if call >= 3:
            took.append(time.perf_counter() - begun)
    return statistics.median(took)


def rank_main(rank: int, world: int, port: int, contender: str, seed: int) -> None:
    import torch
    import torch.distributed as dist

    if not torch.cuda.is_available() or not dist.is_nccl_available():
        sys.exit(f"torch {torch.__version__} here has no GPU, or no NCCL: it takes a build for CUDA, and a GPU")
    torch.cuda.set_device(rank % torch.cuda.device_count())

    def begin(at: int) -> None:
        dist.init_process_group(
            "nccl",
            init_method=f"tcp://127.0.0.1:{at}",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=LIMIT_S),
        )

    begin(port)
    told: dict[str, Any] = {"calls": check_calls(torch, dist, rank, world), "nccl": torch.cuda.nccl.version()}
    if contender == CONTENDERS[2]:
        saw = Saw(rank, seed)
        saw.start()
        right = 0
        ends = time.monotonic() + 20
        going = torch.ones(1, device="cuda")
        while going.item():
            base = torch.arange(4 * MIB, device="cuda", dtype=torch.int32) % 1009
            mine = base * (rank + 1) + right
            dist.all_reduce(mine)
            assert torch.equal(mine, base * sum(range(1, world + 1)) + right * world), (
                f"call {right} with NICs that break"
            )
            right += 1
            going.fill_(float(time.monotonic() < ends))
            dist.broadcast(going, 0)  # rank 0 says when it is over
        told |= {"calls with NICs that break": right, "cuts": saw.stop()}
        told["calls after"] = check_calls(torch, dist, rank, world)
    else:
        told["seconds"] = {str(size): time_of(torch, dist, size) for size in (4096, MIB, 16 * MIB, 64 * MIB)}
    dist.destroy_process_group()
    begin(port + 1)  # NCCL has unloaded the plugin; whether it loads it again is its matter
    try:
        told["calls of a second group"] = check_calls(torch, dist, rank, world)
        dist.destroy_process_group()
    except dist.DistBackendError as error:
        told["calls of a second group"] = str(error).splitlines()[-1]
    print(json.dumps(told), flush=True)


# --- all of them ---------------------------------------------------------------------------------------------------


def free_port() -> int:
    """A port that is free, and the one after it."""
    while True:
        with socket.socket() as one, socket.socket() as two, suppress(OSError, OverflowError):
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
            two.bind(("127.0.0.1", port + 1))
            return port


def env_of(rank: int, contender: str, plugin: Path, folder: Path) -> dict[str, str]:
    env = {
        **os.environ,
        "NCCL_HOSTID": f"host{rank}",
        "NCCL_SOCKET_IFNAME": "=lo",
        "NCCL_SOCKET_FAMILY": "AF_INET",
        "NCCL_IB_DISABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV",
        "NCCL_DEBUG_FILE": str(folder / f"nccl.{rank}"),
    }
    if contender == CONTENDERS[0]:
        return env | {"NCCL_NET": "Socket", "NCCL_NET_PLUGIN": "none"}
    return env | {"NCCL_NET": "optcc", "NCCL_NET_PLUGIN": str(plugin), "OPTCC_NICS": ",".join(nics(rank))}


def contend(contender: str, ranks: int, plugin: Path, seed: int) -> tuple[list[dict[str, Any]], str]:
    """What the ranks told; and what is wrong, or nothing."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        started = []
        for rank in range(ranks):
            command = [sys.executable, __file__, "--rank", str(rank), "--ranks", str(ranks), "--port", str(port)]
            command += ["--contender", contender, "--seed", str(seed)]
            with (folder / f"out.{rank}").open("w") as out, (folder / f"err.{rank}").open("w") as err:
                env = env_of(rank, contender, plugin, folder)
                started.append(subprocess.Popen(command, stdout=out, stderr=err, env=env))
        ends = time.monotonic() + LIMIT_S
        while time.monotonic() < ends and any(one.poll() is None for one in started):
            time.sleep(0.2)
        hung = [rank for rank, one in enumerate(started) if one.poll() is None]
        for one in started:
            one.kill()
            one.wait()
        told, wrong = [], ""
        for rank, one in enumerate(started):
            lines = [line for line in (folder / f"out.{rank}").read_text().splitlines() if line.startswith("{")]
            log = folder / f"nccl.{rank}"
            logged = log.read_text(errors="replace") if log.exists() else ""
            if lines:
                told.append(json.loads(lines[-1]))
            if rank in hung or one.returncode or not lines:
                tail = (folder / f"err.{rank}").read_text()[-3000:] + logged[-6000:]
                wrong += f"rank {rank} {'hung' if rank in hung else f'ended with {one.returncode}'}:\n{tail}\n"
            elif contender != CONTENDERS[0] and "NET/optcc: using" not in logged:
                wrong += f"rank {rank} did not take the plugin:\n{logged[-6000:]}\n"
        return told, wrong


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="they share the GPUs that are here")
    parser.add_argument("--plugin", type=Path, help="libnccl-net-optcc.so; without it, one is built")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.rank is not None:
        rank_main(given.rank, given.ranks, given.port, given.contender, given.seed)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        plugin = given.plugin
        if plugin is None:
            plugin = Path(folder) / "libnccl-net-optcc.so"
            subprocess.run([sys.executable, str(ROOT / "native" / "build.py"), str(plugin)], check=True)
        bad, seconds = 0, {}
        for contender in CONTENDERS:
            told, wrong = contend(contender, given.ranks, plugin.resolve(), given.seed)
            bad += bool(wrong)
            print(f"{contender}: {'wrong' if wrong else 'right'}", *map(json.dumps, told), sep="\n  ")
            print(wrong, end="", flush=True)
            if told and "seconds" in told[0]:
                seconds[contender] = told[0]["seconds"]
        if len(seconds) == 2:
            for size in seconds[CONTENDERS[0]]:
                ratio = seconds[CONTENDERS[1]][size] / seconds[CONTENDERS[0]][size]
                print(f"all_reduce of {size} bytes: the plugin takes {ratio:.2f} of NCCL's own sockets")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
