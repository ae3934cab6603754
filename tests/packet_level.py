"""Run a schedule at packet level in ns-3 (www.nsnam.org): an executor that shares nothing with our simulator.

Of the wheel `ns3` on PyPI only headers and libraries are used: `packet_level.cc` is compiled against them once, reads
a schedule and writes when each transfer had landed.

What ns-3 has and our model has not: packets and their headers, hosts and switches that store and forward whole packets,
one FIFO per output of a switch that all senders share, and, over TCP, acknowledgements and windows.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

import optcc
from optcc.errors import InputError
from optcc.schedule import Schedule
from optcc.schedule.columns import stripes_of
from optcc.schedule.direct import FINDERS, DirectExchange
from optcc.schedule.nics import at_one_pace
from optcc.simulation.simulator import Receivers
from optcc.values.cluster import Cluster

RATE = 50_000_000_000  # 400 Gb/s in bytes per second
HOP = Fraction(1, 10**6)
"""Seconds from port to port that planners are told, about what `latency_s` says."""
AMONG_PODS = ("grouped-exchange", "direct-exchange", "packed-trees")
"""Families that are compared among pods, beside rings."""
_PS = 10**12
_SOURCE = Path(__file__).with_name("packet_level.cc")
_MODULES = ("core", "network", "internet", "point-to-point", "traffic-control")
_HEADERS = {"udp": 8 + 20 + 2, "tcp": 32 + 20 + 2}  # transport (TCP with time stamps), IPv4, PPP: bytes per packet


@dataclass(frozen=True)
class Network:
    """One switch, or one for each pod and one that joins these; one link per port. All of it is fixed before any
    comparison, from what the fabrics are.

    Attributes
    ----------
    transport : "udp": a packet leaves as soon as its port is free, and the switch buffers what a slow receiver has
        not taken, which is what our model says of the fabric; "tcp": at most `window` bytes per pair of ports are
        under way, acknowledged over the same links: real fabrics push back in one way or another
    payload : bytes of data in a packet, the 4096 of InfiniBand and RoCE
    delay_s : seconds on each of the two links of ports: a cable, and half of what NICs and switch take; links between
        switches have none, as our model passes one latency between any two ports
    window : bytes; the default is about twice what is under way in one round trip of 400 Gb/s (2.2 us, 110 kB)
    fresh : TCP connections that have not carried anything yet, so that at most 64 KiB are under way until the first
        acknowledgement is back (RFC 7323: the window in a SYN is not scaled); collectives use theirs again and again
    queue : packets that wait at one output of a switch; lossless, as with flow control, since a drop is an error
    """

    transport: str = "udp"
    payload: int = 4096
    delay_s: float = 0.5e-6
    window: int = 256 * 1024
    queue: int = 10**8
    fresh: bool = False

    @property
    def wire_per_byte(self) -> Fraction:
        """Bytes on the wire per byte of data in a full packet."""
        return 1 + Fraction(_HEADERS[self.transport], self.payload)


@dataclass(frozen=True, eq=False)
class PacketRun:
    """What ns-3 says. finish : float64, shape (rows,), seconds; most_queued : bytes at one output of a switch."""

    time_s: float
    finish: NDArray[np.float64]
    packets: int
    most_queued: int


def missing() -> str | None:
    """What this machine lacks to run ns-3; None: nothing."""
    if _wheel() is None:
        return "no ns-3 wheel (pip install --no-deps ns3)"
    return None if shutil.which("g++") else "no g++, which compiles the ns-3 program"


def _wheel() -> Path | None:
    spec = importlib.util.find_spec("ns3")
    places = (spec.submodule_search_locations or []) if spec else []
    return next((Path(place) for place in places if (Path(place) / "include/ns3/core-module.h").exists()), None)


def compile_executor(directory: Path) -> Path:
    """Compile the executor into `directory`, about 5 s of processor time, and return the program's path."""
    root = _wheel()
    if root is None:
        raise FileNotFoundError(missing())
    core = next(root.glob("lib*/libns3*-core.so"))
    prefix = core.name.removeprefix("lib").removesuffix("core.so")  # "ns3.44-"
    program = directory / "packet_level"
    command = ["g++", "-std=c++20", "-O2", f"-I{root / 'include'}", str(_SOURCE), "-o", str(program)]
    command += [f"-L{core.parent}", f"-Wl,-rpath,{core.parent}", f"-Wl,-rpath-link,{core.parent}"]
    command += [f"-l{prefix}{module}" for module in _MODULES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
    return program


def run_packets(executor: Path, schedule: Schedule, network: Network, *, limit_s: float = 10.0) -> PacketRun:
    """Run `schedule` in ns-3. Ports' rates are those of data: links are faster by the headers of full packets.

    Raises RuntimeError when a packet is dropped or transfers are left after `limit_s` seconds of virtual time, and
    ValueError for what this network cannot do: other links than those of pods, one up and one down, or a rank that
    waits for what another received.
    """
    waits = np.repeat(np.arange(len(schedule)), np.diff(schedule.dep_ptr))
    if (schedule.dst[schedule.dep_idx] != schedule.src[waits]).any():
        raise ValueError("a rank waits for what another rank received, and no packet tells it")
    stripes = stripes_of(schedule)

    def wire(rate: float) -> int:
        return round(8 * Fraction(rate) * network.wire_per_byte)

    at, rates = switches(schedule)
    ports = [(wire(p.out_rate), wire(p.in_rate), own) for p, own in zip(schedule.ports, at, strict=True)]
    above = [tuple(map(wire, both)) for both in rates]
    head = [int(network.transport == "tcp"), int(network.fresh), network.payload, network.window, network.queue]
    head += [round(seconds * _PS) for seconds in (network.delay_s, limit_s)]
    columns = np.stack([stripes.row, stripes.out, stripes.into, stripes.length], axis=1)
    deps = [[len(schedule.deps(row)), *schedule.deps(row).tolist()] for row in range(len(schedule))]
    lines = [head, [len(above)], *above, [len(ports)], *ports]
    lines += [[len(columns)], *columns.tolist(), [len(schedule)], *deps]
    text = "\n".join(" ".join(map(str, line)) for line in lines)
    done = subprocess.run([str(executor)], input=text, capture_output=True, text=True, timeout=280)
    if done.returncode:
        raise RuntimeError(f"ns-3: exit status {done.returncode}: {done.stderr.strip()}")
    packets, most_queued, *landed = map(int, done.stdout.split())
    finish = np.array(landed, np.float64) / _PS
    return PacketRun(float(finish.max(initial=0)), finish, packets, most_queued)


def switches(schedule: Schedule) -> tuple[list[int], list[tuple[float, float]]]:
    """Of each port its switch, and of each switch the rates of its links up and down; 0 where it has none.

    Ports that reach each other without an uplink have one switch, so do those that share an uplink.
    """
    lanes = [lane for route in schedule.routes for lane in route.lanes]
    inside = np.array([(lane.out, lane.into) for lane in lanes if not lane.links], np.int64).reshape(-1, 2).T
    size = len(schedule.ports)
    joined = coo_array((np.ones(inside.shape[1]), inside), shape=(size, size))
    part = connected_components(joined, directed=False)[1].tolist()
    name = {p: str(p) for p in part}
    for lane in lanes:
        names = [schedule.links[link].name for link in lane.links]
        if len(names) not in (0, 2) or not all(each.startswith("uplink of pod") for each in names):
            raise ValueError(f"a lane over {', '.join(names)}; this network has one uplink up and one down")
        for port, each in zip((lane.out, lane.into), names, strict=False):
            name[part[port]] = _pod(each)
    pods = sorted({*name.values()})
    rate = {link.name: link.rate for link in schedule.links}
    rates = [(rate.get(f"{each}, out", 0.0), rate.get(f"{each}, in", 0.0)) for each in pods]
    return [pods.index(name[p]) for p in part], rates


def _pod(link: str) -> str:
    """What the links up and down have in common."""
    return link.rsplit(", ", 1)[0]


def degraded(servers: int, left: Sequence[Fraction]) -> Cluster:
    """`servers` with one NIC of 400 Gb/s each, of which the first ones have the part `left`."""
    cluster = Cluster.uniform(servers=servers, rate=Fraction(RATE))
    for i, part in enumerate(left):
        cluster = cluster.degrade(f"server{i}/nic0", part)
    return cluster


def without(servers: int, *dead: int) -> Cluster:
    """`servers` with four NICs of 100 Gb/s each, of which the first ones have lost so many."""
    cluster = Cluster.uniform(servers=servers, nics=4, rate=Fraction(RATE, 4))
    for server, lost in enumerate(dead):
        for nic in range(lost):
            cluster = cluster.degrade(f"server{server}/nic{nic}")
    return cluster


def schemes(cluster: Cluster, nbytes: int, *depths: int) -> dict[str, Schedule]:
    """What is compared: one ring over all servers, nested rings of these numbers of segments, complementary trees, and
    direct exchange in each kind of steps that applies; among pods `AMONG_PODS`."""
    plans = {k: optcc.plan(cluster, nbytes, family="nested-rings", segments=k) for k in depths}
    rings = {
        "ring": plans[max(depths)].baseline("ring").schedule(),
        **{f"nested, k = {k}": plan.schedule() for k, plan in plans.items()},
    }
    if cluster.fabric.pod_oversubscription is not None:
        return rings | _among_pods(cluster, nbytes)
    return {
        **rings,
        "trees": optcc.plan(cluster, nbytes, family="trees", segments=4).schedule(),
        **(_direct(cluster, nbytes) if at_one_pace(cluster) is cluster else {}),
    }


def _among_pods(cluster: Cluster, nbytes: int) -> dict[str, Schedule]:
    """Those of `AMONG_PODS` that the planner offers here, as it would have them."""
    found = {}
    for family in AMONG_PODS:
        with suppress(InputError):  # no such family here
            plan = optcc.plan(cluster, nbytes, family=family, alpha=HOP)
            found[f"{family}, k = {plan.segments}"] = plan.schedule()
    return found


def _direct(cluster: Cluster, nbytes: int) -> dict[str, Schedule]:
    """The planner's."""
    if not any(finder.applies(cluster) for finder in FINDERS.values()):
        return {}
    plan = optcc.plan(cluster, nbytes, family=DirectExchange.family, alpha=HOP)
    return {f"direct exchange, k = {plan.segments}": plan.schedule()}


def latency_s(schedule: Schedule, network: Network) -> float:
    """Our model's latency from port to port: two links, and one packet, which the switch stores before it sends it on:
    the largest packet that the schedule has, at the rate of its fastest port."""
    largest = min(network.payload, int(stripes_of(schedule).length.max(initial=0)))
    return 2 * network.delay_s + largest / float(max(port.out_rate for port in schedule.ports))


def simulated(schedule: Schedule, network: Network, receivers: Receivers = "packets") -> float:
    """Seconds by our simulator with the latency of `network`."""
    return optcc.simulate(schedule, alpha=latency_s(schedule, network), receivers=receivers).time_s


def inversions(ours: Sequence[float], theirs: Sequence[float], tie: float = 0) -> list[tuple[int, int]]:
    """Pairs (i, j) of schemes of which we say that i is faster, and they do not.

    Without the ties: pairs of which both say that the slower one takes at most the part `tie` longer.
    """
    pairs = [(i, j) for i in range(len(ours)) for j in range(len(ours))]
    other = [(i, j) for i, j in pairs if ours[i] < ours[j] and not theirs[i] < theirs[j]]
    return [(i, j) for i, j in other if max(ours[j] / ours[i], theirs[i] / theirs[j]) > 1 + tie]
