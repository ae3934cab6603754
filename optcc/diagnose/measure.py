"""What to measure where the evidence does not tell, as commands of nccl-tests."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from optcc.diagnose.ports import NicDirections
from optcc.values.cluster import Server

SIZES = "-b 256M -e 4G -f 2 -g 1"
MOST_NAMED = 8
MOST_SUSPECTS = 4
MANY = 16
"""NICs that fit alike from which whole rails are measured: pairs would clear too few of them."""


@dataclass(frozen=True)
class Measure:
    """`why` : what it tells; `command` : to be run on the cluster, its output being evidence."""

    why: str
    command: str


@dataclass(frozen=True)
class Open:
    """A NIC that is named: its rivals, and whether these are as likely."""

    nic: str
    rivals: Sequence[str]
    possible: bool


def what_to_measure(
    named: Sequence[Open],
    paths: Sequence[tuple[str, Sequence[str]]],
    low: Sequence[str],
    paced: bool,
    unmeasured: Sequence[str],
    suspects: Sequence[str],
    ports: NicDirections,
) -> tuple[Measure, ...]:
    """What would settle what is open, at most `MOST_NAMED` commands.

    paths : slow measurements that no NIC explains, (where, NICs) each; low : kinds whose healthy rate is not known
    paced : whether anything was measured; unmeasured : NICs not seen at their rate; suspects : those with grave signs
    """
    if low and not named:
        return all_pairs(ports, f"of {', '.join(low)} none may be healthy: ")
    if not paced and not named:
        return each_rail(ports, "nothing was measured")
    open_ = [one for one in named if one.possible]
    many = min(len(ports.cluster.servers), MANY)
    if wide := [len(one.rivals) + 1 for one in open_ if len(one.rivals) >= many]:
        return each_rail(ports, f"{max(wide)} NICs fit alike")
    names = [one.nic for one in named]
    wanted = [measure for one in open_ for measure in apart(one.nic, one.rivals, names, ports)]
    wanted += [measure for where, nics in paths for measure in path_again(where, nics, ports)]
    wanted += [measure for nic in suspects[:MOST_SUSPECTS] for measure in apart(nic, (), names, ports)]
    if not named and unmeasured:
        more = " and others" if len(unmeasured) > 3 else ""
        wanted += all_pairs(ports, f"nothing measured {', '.join(unmeasured[:3])}{more}: ")
    return tuple(dict.fromkeys(wanted))[:MOST_NAMED]


def pair(one: str, other: str, nic: str, gpu: int, why: str) -> Measure:
    """Between two servers over the NICs of one name."""
    run = (
        f"mpirun -np 2 -H {shlex.quote(one)},{shlex.quote(other)} -x NCCL_IB_HCA=={shlex.quote(nic)} "
        f"-x CUDA_VISIBLE_DEVICES={gpu} -x NCCL_DEBUG=INFO sendrecv_perf {SIZES} > {one}-{other}-{nic}.txt"
    )
    return Measure(why, run)


def apart(name: str, rivals: Sequence[str], suspects: Sequence[str], ports: NicDirections) -> list[Measure]:
    """Tells `name` from `rivals`: it alone of them, with a server that is under no suspicion."""
    server, _, nic = name.partition("/")
    index = [n.name for n in ports.by_name[server].nics].index(nic)
    under = {other.partition("/")[0] for other in (*rivals, *suspects)} | {server}
    free = next((s.name for s in ports.cluster.servers if s.name not in under and _has(s, nic)), None)
    if free is None:
        free = next((s.name for s in ports.cluster.servers if s.name != server and _has(s, nic)), None)
    if free is None:
        return []
    told = f"tells {name} from {', '.join(rivals[:MOST_NAMED])}" if rivals else f"measures {name} alone"
    return [pair(server, free, nic, ports.by_name[server].gpu_of(index), told)]


def path_again(where: str, nics: Sequence[str], ports: NicDirections) -> list[Measure]:
    """A slow measurement of two servers once more, the other way round."""
    servers = list(dict.fromkeys(name.partition("/")[0] for name in nics))
    names = list(dict.fromkeys(name.partition("/")[2] for name in nics))
    if len(servers) != 2 or len(names) != 1:
        return []
    index = [n.name for n in ports.by_name[servers[1]].nics].index(names[0])
    gpu = ports.by_name[servers[1]].gpu_of(index)
    return [pair(servers[1], servers[0], names[0], gpu, f"{where} again: is it the path, or was it once?")]


def each_rail(ports: NicDirections, why: str) -> tuple[Measure, ...]:
    """One AllReduce for each NIC of a server, over all servers: tells which rail; pairs then tell which server."""
    servers = ports.cluster.servers
    first = servers[0]
    hosts = ",".join(server.name for server in servers) if len(servers) <= MOST_NAMED else "$HOSTS"
    nics = " ".join(shlex.quote(nic.name) for nic in first.nics)
    command = (
        f"for nic in {nics}; do mpirun -np {len(servers)} -H {hosts} -x NCCL_IB_HCA==$nic "
        f"-x NCCL_DEBUG=INFO all_reduce_perf {SIZES} > all_reduce-$nic.txt; done"
    )
    return (Measure(f"{why}: one AllReduce for each NIC tells the rail", command), *all_pairs(ports))


def all_pairs(ports: NicDirections, why: str = "") -> tuple[Measure, ...]:
    """Over each NIC every server with the next one, and with the one after that."""
    servers = ports.cluster.servers
    if len(servers) < 2:
        return ()
    nics = " ".join(shlex.quote(nic.name) for nic in servers[0].nics)
    names = " ".join(server.name for server in servers) if len(servers) <= MOST_NAMED else "${HOSTS//,/ }"
    command = (
        f"set -- {names}; for nic in {nics}; do for far in 1 2; do for i in $(seq $#); do "
        f"a=${{!i}}; j=$(( (i - 1 + far) % $# + 1 )); b=${{!j}}; "
        f"mpirun -np 2 -H $a,$b -x NCCL_IB_HCA==$nic -x NCCL_DEBUG=INFO sendrecv_perf {SIZES} "
        f"> $a-$b-$nic.txt; done; done; done"
    )
    return (Measure(f"{why}each NIC with two others tells which it is", command),)


def _has(server: Server, nic: str) -> bool:
    return any(one.name == nic for one in server.nics)
