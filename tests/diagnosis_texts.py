"""Evidence in the documented formats, written here: names, addresses and numbers belong to no machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from fractions import Fraction
from pathlib import Path

from optcc.diagnose.evidence import NicDirections
from optcc.discover.topology import Measured
from optcc.discover.yaml_file import write_yaml
from optcc.values.cluster import Cluster, Nic, Server
from tests.sysfs_trees import ACTIVE, GEN5, Machine, write

HOSTS = ("server0", "server1")
PORTS = NicDirections(Cluster.uniform(servers=2, nics=2, rate="400Gb/s"))
"""The cluster that the texts are of."""
RATE = Fraction(50 * 10**9)
"""Of each of its NICs, in bytes per second."""
RATES = dict.fromkeys(("nic0", "nic1"), "400 Gb/sec (4X NDR)")
"""As sysfs has them."""
FUSED = NicDirections(
    Cluster(tuple(Server(host, (Nic("nic0+nic1", RATE, RATE), Nic("nic2", RATE, RATE))) for host in HOSTS))
)
"""The cluster where nic0 and nic1 are the ports of one NIC."""


def log(*extra: str, nics: int = 2) -> str:
    """NCCL's log of two servers with two GPUs each: a ring of two channels over NICs nic0 and nic1."""
    lines = []
    for h, host in enumerate(HOSTS):
        cards = " ".join(f"[{n}]nic{n}:1/RoCE" for n in range(nics))
        lines.append(f"{host}:100:200 [0] NCCL INFO Bootstrap : Using eth0:192.0.2.{h + 1}<0>")
        lines.append(f"{host}:100:200 [0] NCCL INFO NET/IB : Using {cards} [RO]; OOB eth0:192.0.2.{h + 1}<0>")
        lines.append(f"{host}:100:200 [0] NCCL INFO comm 0x55 rank {2 * h} nranks 4 cudaDev 0 nvmlDev 0 busId 1b000")
        for channel in range(2):
            here, there = 2 * h + channel, 2 * (1 - h) + channel
            for one, other, way in ((here, there, "send"), (there, here, "receive")):
                ends = f"Channel {channel:02d}/0 : {one}[{channel}] -> {other}[{channel}] [{way}]"
                lines.append(f"{host}:100:200 [{channel}] NCCL INFO {ends} via NET/IB/{channel}/GDRDMA")
    return "\n".join([*lines, *extra]) + "\n"


ERROR_12 = (
    "server0:100:300 [0] transport/net_ib/p2p.cc:688 NCCL WARN NET/IB: Got completion from peer 192.0.2.2<40000> with "
    "status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129  localGid ::ffff:192.0.2.1 remoteGids"
    "::ffff:192.0.2.2 hca nic1"
)
OLD_ERROR_12 = (
    "server0:100:300 [0] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 192.0.2.2<40000> with status=12 "
    "opcode=0 len=0 vendor err 129 (Recv) localGid ::ffff:192.0.2.1 remoteGids::ffff:192.0.2.2 hca nic1"
)
PORT_ERROR = "server1:100:300 [0] NCCL WARN NET/IB : nic0:1 Got non-fatal async event: port error(10)"
SLOWER = "server1:100:300 [0] NCCL INFO NET/IB : nic1:1 speed change detected: 400000 -> 100000 Mbps"

TABLE = """# Collective test starting: {kind}_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid    100 on    server0 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid    101 on    server0 device  1 [0000:43:00] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid    100 on    server1 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid    101 on    server1 device  1 [0000:43:00] NVIDIA H100 80GB HBM3
{log}#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
{rows}# Out of bounds values : 0 OK
# Avg bus bandwidth    : 40.0
"""  # noqa: E501


def table(kind: str, time_us: float, nbytes: int = 1 << 30, log: str = "", wrong: int = 0, root: int = -1) -> str:
    """One large row, in place a hundredth slower, and a small one that does not count."""
    small = "34.24    0.01    0.01      0    33.65    0.01    0.01    N/A"
    rows = f"{8:12d} {2:13d}     float     sum {root:7d}    {small}\n"
    rows += (
        f"{nbytes:12d} {nbytes // 4:13d}     float     sum {root:7d} {time_us:8.1f} {nbytes / time_us / 1e3:7.2f} "
        f"{nbytes / time_us / 1e3:7.2f} {wrong:6d} {1.01 * time_us:8.1f}    1.00    1.00      0\n"
    )
    return TABLE.format(kind=kind, log=log, rows=rows)


def json_table(time_us: float, nbytes: int = 1 << 30) -> str:
    """What nccl-tests write with -J."""
    cell = {"time": time_us, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": 0.0}
    devices = [
        {"rank": 2 * h + g, "group": 0, "pid": 100, "hostname": host, "device": g, "device_hex": "0x1b"}
        for h, host in enumerate(HOSTS)
        for g in range(2)
    ]
    row = {"size": nbytes, "count": 1, "type": "float", "redop": "sum", "root": "-1"}
    return json.dumps(
        {
            "version": 2,
            "args": ["./build/all_reduce_perf", "-b", "1G"],
            "env": ["NCCL_DEBUG=WARN"],
            "nccl_version": 22807,
            "config": {"nthreads": 1, "devices": devices},
            "results": [{**row, "out_of_place": cell, "in_place": cell}],
            "average_bus_bandwidth": {"bandwidth": 1.0, "okay": "unchecked"},
        }
    )


def inspector(rank: int, times_us: Mapping[int, int], nbytes: int = 1 << 30, ranks: int = 4, nodes: int = 2) -> str:
    """NCCL Inspector's lines of one rank: number of the collective -> microseconds."""
    host = HOSTS[rank // (ranks // nodes)]
    lines = []
    for number, time_us in times_us.items():
        lines.append(
            json.dumps(
                {
                    "header": {"id": "0x7f8c", "rank": rank, "n_ranks": ranks, "nnodes": nodes},
                    "metadata": {"inspector_output_format_version": "v4.0", "hostname": host, "pid": 7},
                    "coll_perf": {
                        "coll": "AllReduce",
                        "coll_sn": number,
                        "coll_msg_size_bytes": nbytes,
                        "coll_exec_time_us": time_us,
                        "coll_timing_source": "kernel_gpu",
                        "coll_algobw_gbs": 1.5,
                        "coll_busbw_gbs": 2.5,
                    },
                }
            )
        )
    return "\n".join(lines) + "\n"


RAS = """Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          2            1          4        4

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2       1-2         4         4   RUNNING  INCOMPLETE

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 101 on node server1 managing GPU 1

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 3

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  3 ranks have launched up to operation 6650
  1 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 100 on node server0
  Rank 2 -- GPU 0 managed by process 100 on node 192.0.2.9
"""
RAS_JSON = json.dumps(
    {
        "nccl_version": "2.29.1",
        "communicators": [
            {
                "hash": "0xae94",
                "size": 2,
                "ranks": [{"rank": 0, "host": "server0", "status": {"init_state": 0, "async_error": 6}}],
                "missing_ranks": [
                    {"rank": 1, "host": "server1", "status": {"unresponsive": True, "considered_dead": False}}
                ],
            }
        ],
    }
)


def calibration(left: float = 1.0) -> str:
    """What optcc calibrate writes for two servers with two NICs; server1/nic1 at `left` of its rate, out."""
    cluster = Cluster.uniform(servers=2, nics=2, rate="392Gb/s")
    nic = cluster.servers[1].nics[1]
    slow = type(nic)(nic.name, nic.out_rate * Fraction(left).limit_denominator(100), nic.in_rate, nic.rail, nic.gpu)
    plates = {f"{s.name}/{n.name}": Fraction(50 * 10**9) for s in cluster.servers for n in s.nics}
    measured = Measured(date(2026, 11, 20).isoformat(), "verbs", None, None, Fraction(1, 100), plates)
    return write_yaml(cluster.with_nic(1, 1, slow), measured=measured)


def sysfs(
    root: Path,
    rates: Mapping[str, str],
    states: Mapping[str, str] | None = None,
    slots: Mapping[str, tuple[str, str]] | None = None,
    counters: Mapping[str, Mapping[str, int]] | None = None,
) -> Path:
    """A sysfs with RDMA devices: name -> rate, and by name state, (current, possible) speed of its slot, counters."""
    made = Machine(root)
    for i, (name, rate) in enumerate(rates.items()):
        now, most = (slots or {}).get(name, (GEN5, GEN5))
        state = (states or {}).get(name, ACTIVE)
        card = made.rdma(i, name, rate.split()[0], state=state, now=(now, "16"), max_link_speed=most)
        told = {counter: str(value) for counter, value in (counters or {}).get(name, {}).items()}
        write(card / f"infiniband/{name}/ports/1/counters", **told)
    return root
