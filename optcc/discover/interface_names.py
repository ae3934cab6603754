"""Which network interfaces are hardware, by what the source says of their card, and by their names."""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import IntEnum


class Standing(IntEnum):
    """What an interface is, the most real first. Those of a virtual machine without PCI (hv_netvsc) are PLAIN."""

    CARD = 0
    PLAIN = 1
    STAND_IN = 2  # a bond, a bridge, a VLAN: it has the address, and may be all that NCCL lists, of a card below it
    VIRTUAL = 3


_VIRTUAL = re.compile(
    r"lo|(veth|virbr|docker|br-|cni|cali|cilium|flannel|kube|lxc|lxd|podman|nerdctl|weave|vnet|vmnet|tap|tun|utun|"
    r"tailscale|wg|zt|vxlan|genev|gre|gretap|erspan|sit|ip6tnl|ipip|tunl|ip_vti|ip6_vti|dummy|ifb|macvtap|macvlan|"
    r"ipvlan|ovs|teql|nodelocaldns|wl|ww|usb|tmfifo)[\w.@-]*",
)
_STAND_IN = re.compile(r"(bond|team|br|vmbr|bridge|vlan)[0-9][\w.@-]*")


def standing(name: str, names: Collection[str], on_card: bool) -> Standing:
    """What the interface `name` is among `names`; `on_card` where the source has a PCI card for it."""
    below = name.split("@")[0].rpartition(".")[0]
    if below and (below in names or not on_card):  # eth0.100, ib0.8001
        return Standing.VIRTUAL if below in names else Standing.STAND_IN
    if on_card:
        return Standing.CARD
    if _VIRTUAL.fullmatch(name):
        return Standing.VIRTUAL
    return Standing.STAND_IN if _STAND_IN.fullmatch(name) else Standing.PLAIN
