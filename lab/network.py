"""The lab's network, from inside: NICs nic0, nic1, ... on one switch, each with a soft-RoCE device rxe0, rxe1, ...

A NIC is one end of a pair of virtual interfaces; the other end, its cable sw0, sw1, ..., is a port of the bridge. Any
NIC reaches any other. Packets between two NICs of one machine must really leave it: each NIC has a routing table of its
own, chosen by the source address, and the kernel's table of local addresses is asked only after those.

Run `python3 lab/network.py --help` for the same by hand.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

MTU = 4200  # a path MTU of 4096 and its headers
BURST_BYTES = 16384
SWITCH = "br0"
_RXE = Path("/sys/class/infiniband")
_HOSTS = Path("/run/optcc-addresses")  # of NICs whose address has changed

Packets = Literal["all", "data", "acks"]
Direction = Literal["out", "in", "both"]

_TROUBLES = (
    "duplicate_request",
    "out_of_seq_request",
    "rcvd_seq_err",
    "rcvd_rnr_err",
    "completer_retry_err",
    "send_err",
)
"""Counters of soft-RoCE that stand still while every packet arrives, in order and once."""

_OPCODES = {  # first byte of the transport header, value and mask: InfiniBand specification, volume 1, table 35
    "all": ("0x00 0x00",),
    "data": ("0x00 0xfc", "0x04 0xfe", "0x06 0xfe", "0x08 0xfc", "0x64 0xfe"),  # sends, RDMA WRITEs; datagrams
    "acks": ("0x0d 0xff", "0x0e 0xfe", "0x10 0xfe"),  # RDMA READ responses, acknowledgements
}


def up(count: int) -> None:
    """Make the switch and `count` NICs with their soft-RoCE devices."""
    _HOSTS.mkdir()
    every = range(count)
    _ip("link set lo up", f"link add {SWITCH} type bridge", f"link set {SWITCH} mtu {MTU} up")
    links: list[str] = []
    for i in every:
        links += (
            f"link add nic{i} address {_mac(i)} mtu {MTU} type veth peer name sw{i} mtu {MTU}",
            f"link set sw{i} master {SWITCH} up",
            f"link set sw{i} type bridge_slave learning off flood off",
        )
    _ip(*links)
    _write("all/rp_filter", 0)
    _write(f"{SWITCH}/arp_ignore", 1)
    for i in every:
        for name, value in (("accept_local", 1), ("rp_filter", 0), ("arp_ignore", 1), ("arp_announce", 2)):
            _write(f"nic{i}/{name}", value)
        for interface in (f"nic{i}", f"sw{i}"):
            ipv6 = Path(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6")
            if ipv6.exists():  # not in the lab's own kernel, but in the distribution's
                ipv6.write_text("1")
    _batch("tc", [f"qdisc add dev sw{i} clsact" for i in every])
    _batch("bridge", [f"fdb add {_mac(i)} dev sw{i} master static" for i in every])
    _ip("rule del pref 0", "rule add pref 2000 lookup local")
    _ip(*(line for i in every for line in (f"addr add {_address(i)}/16 dev nic{i}", f"link set nic{i} up", _rule(i))))
    _ip(*(line for i in every for peer in every if peer != i for line in _path(i, peer)))
    _batch("rdma", [f"link add rxe{i} type rxe netdev nic{i}" for i in every])
    time.sleep(0.5)  # what the kernel still does about new links would delay the first packets by milliseconds


def nics() -> int:
    """How many NICs there are."""
    return len(list(_RXE.glob("rxe*")))


def cut(nic: int, cable: bool = False) -> None:
    """Take a NIC down, or pull its cable out of the switch."""
    _run("ip", "link", "set", f"sw{nic}" if cable else f"nic{nic}", "down")


def restore(nic: int) -> None:
    """Bring a NIC and its cable up. The kernel has dropped its routes and neighbours on the way down: put them back."""
    _ip(f"link set sw{nic} up", f"link set nic{nic} up")
    _ip(*(line for peer in range(nics()) if peer != nic for line in _path(nic, peer)))
    state = _RXE / f"rxe{nic}/ports/1/state"
    for _ in range(500):
        if "ACTIVE" in state.read_text():
            return
        time.sleep(0.01)
    raise TimeoutError(f"rxe{nic} does not come back")


def whole(which: Iterable[int] | None = None) -> None:
    """Mend everything: links and cables up, no losses, rates unlimited."""
    those = range(nics()) if which is None else list(which)
    lines = [f"filter del dev sw{i} {hook}" for i in those for hook in ("ingress", "egress")]
    lines += [f"qdisc del dev {kind}{i} root" for i in those for kind in ("nic", "sw")]
    # -force: most have none of these, and that is fine.
    subprocess.run(
        ["tc", "-force", "-b", "-"], input="\n".join(lines) + "\n", text=True, capture_output=True, check=False
    )
    for i in those:
        if any(Path(f"/sys/class/net/{kind}{i}/operstate").read_text().strip() != "up" for kind in ("nic", "sw")):
            restore(i)


def rate(nic: int, bits_per_s: float) -> None:
    """Let a NIC send and receive at this rate; 0: as fast as the machine is. May be changed while packets fly."""
    both = (f"nic{nic}", f"sw{nic}")
    if not bits_per_s:
        for interface in both:
            subprocess.run(["tc", "qdisc", "del", "dev", interface, "root"], capture_output=True, check=False)
        return
    # Two packets: the timers of virtual time are exact, so a larger bucket would only be a burst above the rate.
    shape = f"tbf rate {bits_per_s:.0f}bit burst {BURST_BYTES} limit 32mb"
    _batch("tc", [f"qdisc replace dev {interface} root {shape}" for interface in both])


def lose(nic: int, direction: Direction = "out", packets: Packets = "all", one_in: int = 1) -> None:
    """Lose, silently, packets that leave a NIC or arrive at it: `one_in` of so many, at random."""
    # At the switch: soft-RoCE would notice that its own NIC drops a packet, and try again at once, for ever.
    hooks = {"out": ("ingress",), "in": ("egress",), "both": ("ingress", "egress")}[direction]
    action = "drop" if one_in == 1 else f"pass random netrand drop {one_in}"
    # The transport header follows 20 bytes of IPv4 and 8 of UDP, port 4791.
    those = [f"protocol ip u32 match ip dport 4791 0xffff match u8 {opcode} at 28" for opcode in _OPCODES[packets]]
    _batch("tc", [f"filter add dev sw{nic} {hook} {that} action {action}" for hook in hooks for that in those])


def heal(nic: int) -> None:
    """Lose no more."""
    _batch("tc", [f"filter del dev sw{nic} {hook}" for hook in ("ingress", "egress")])


def troubles() -> dict[str, int]:
    """Since boot, on all NICs: packets that shapers have dropped, and what soft-RoCE has counted that should not be."""
    queues = json.loads(subprocess.run(["tc", "-s", "-j", "qdisc"], capture_output=True, check=True).stdout)
    found = {"dropped": sum(queue["drops"] for queue in queues if queue["kind"] == "tbf")}
    for name in _TROUBLES:
        found[name] = sum(int(count.read_text()) for count in _RXE.glob(f"rxe*/ports/1/hw_counters/{name}"))
    return found


def held() -> str:
    """What the kernel counts by device: queue pairs, completion queues, regions, domains, contexts."""
    return subprocess.run(["rdma", "resource", "show"], capture_output=True, text=True, check=True).stdout


def readdress(nic: int) -> str:
    """Give a NIC, while it is down, its next address, as a lease that ran out would. All others learn of it."""
    old = _address(nic)
    _ip(f"addr del {old}/16 dev nic{nic}")
    new = f"10.0.{nic}.{int(old.rpartition('.')[2]) + 1}"
    _HOSTS.joinpath(f"nic{nic}").write_text(new)
    _ip(f"addr add {new}/16 dev nic{nic}", f"rule del pref {1000 + nic}", _rule(nic))
    _ip(*(line for peer in range(nics()) if peer != nic for line in _path(peer, nic)))
    return new


def _address(nic: int) -> str:
    changed = _HOSTS / f"nic{nic}"
    return changed.read_text() if changed.exists() else f"10.0.{nic}.1"


def _mac(nic: int) -> str:
    return f"02:00:00:00:00:{nic:02x}"


def _rule(nic: int) -> str:
    return f"rule add pref {1000 + nic} from {_address(nic)} iif lo lookup {1000 + nic}"


def _path(nic: int, peer: int) -> Iterator[str]:
    """From one NIC to another: a route in its own table, and a neighbour that need not be asked for."""
    yield f"route replace {_address(peer)}/32 dev nic{nic} src {_address(nic)} table {1000 + nic}"
    yield f"neigh replace {_address(peer)} lladdr {_mac(peer)} dev nic{nic} nud permanent"


def _ip(*lines: str) -> None:
    _batch("ip", lines)


def _batch(tool: str, lines: Iterable[str]) -> None:
    subprocess.run([tool, "-b", "-"], input="\n".join(lines) + "\n", text=True, check=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def _write(name: str, value: int) -> None:
    Path(f"/proc/sys/net/ipv4/conf/{name}").write_text(str(value))


def main() -> None:
    """The same from the command line."""
    parser = argparse.ArgumentParser(description="The lab's network.")
    what = parser.add_subparsers(dest="what", required=True)
    what.add_parser("up", help="make it").add_argument("count", type=int)
    for name, help_ in (("cut", "link down"), ("restore", "link up again"), ("heal", "lose no more")):
        what.add_parser(name, help=help_).add_argument("nic", type=int)
    shape = what.add_parser("rate", help="shape all NICs, or some")
    shape.add_argument("bits_per_s", type=float)
    shape.add_argument("nic", type=int, nargs="*")
    loss = what.add_parser("lose", help="lose packets")
    loss.add_argument("nic", type=int)
    loss.add_argument("--direction", choices=["out", "in", "both"], default="out")
    loss.add_argument("--packets", choices=list(_OPCODES), default="all")
    loss.add_argument("--one-in", type=int, default=1)
    given = parser.parse_args()
    match given.what:
        case "up":
            up(given.count)
        case "rate":
            for nic in given.nic or range(nics()):
                rate(nic, given.bits_per_s)
        case "lose":
            lose(given.nic, given.direction, given.packets, given.one_in)
        case name:
            {"cut": cut, "restore": restore, "heal": heal}[name](given.nic)


if __name__ == "__main__":
    main()
