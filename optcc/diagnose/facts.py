"""What any file says of hosts, addresses and ports, so that all others can be read with it.

A log names a peer by its IP address or GID, a tool a port by its LID or its network interface; who that is may be said
elsewhere: in the first lines of another log, by a server's sysfs, by what ``ibstat``, ``ibv_devinfo``, ``ibdev2netdev``
or ``rdma link`` printed.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field

from optcc.discover.nccl_log import OOB, cards_in
from optcc.machine.rdma import rdma_ports
from optcc.machine.sysfs import Sysfs

Place = tuple[str, str]
"""Host and NIC."""

_SAYS = re.compile(r"OOB|: Using|Bootstrap ?: Using|localGid")
_HOST = re.compile(r"([A-Za-z0-9][\w.-]{0,254}):\d{1,9}(?::\d{1,9})? \[\d{1,4}\] ")
_GID_OF = re.compile(r"localGid ([0-9a-fA-F:.]{2,60}) .{0,200}\bhca ([\w.+-]{1,80})")
_CARD = re.compile(
    r"^\s*(?:CA '|hca_id:\s+|Infiniband device '|\w{5} \S{8,20} {1,9}\S{1,40}\] RDMA device: )([\w.+-]{1,80})", re.M
)
_PORT = re.compile(r"^\s*[Pp]ort:?\s{0,9}(\d{1,3}):?\s*$", re.M)
_GID = re.compile(r"(?:GID\[\s*\d{1,4}\]:|default gid:|\(GID_Index \d{1,4}\))\s*([0-9a-fA-F:.]{2,60})")
_LID = re.compile(r"\b(?:Base lid|base lid|port_lid|LID):\s*(0x[0-9a-fA-F]{1,8}|\d{1,6})\b")
_NETDEV = re.compile(r"^\s*(?:\S{1,20} )?([\w.+-]{1,80}) port (\d{1,3}) ==> (\S{1,80}) \(", re.M)
_RDMA_LINK = re.compile(r"\blink ([\w.+-]{1,80})/(\d{1,3}) state .{0,120}?netdev ([\w.@-]{1,80})")


@dataclass
class Facts:
    """addresses : IP address -> host; gids, lids : GID, as Python writes IPv6 addresses, and LID -> (host, NIC);
    interfaces : (host, network interface) -> NIC; cards : host -> the NICs that its jobs use. Two files that differ in
    one leave it unknown."""

    addresses: dict[str, str] = field(default_factory=dict)
    gids: dict[str, Place] = field(default_factory=dict)
    lids: dict[int, Place] = field(default_factory=dict)
    interfaces: dict[Place, str] = field(default_factory=dict)
    cards: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _unsure: set[object] = field(default_factory=set)

    def add_text(self, text: str, host: str | None) -> None:
        """What a text says; `host` is the server whose file it is, where that is known."""
        for line in text.splitlines() if _SAYS.search(text) else ():
            if _SAYS.search(line) and (speaker := _HOST.search(line)):
                if cards := cards_in(line):
                    self._add(self.cards, speaker[1], tuple(cards.values()))
                if oob := OOB.search(line):
                    self._add(self.addresses, oob[1], speaker[1])
                if gid := _GID_OF.search(line):
                    self._add_gid(gid[1], speaker[1], gid[2])
        if host is not None:
            self._add_ports(text, host)

    def _add_ports(self, text: str, host: str) -> None:
        for name, port, interface in (*_NETDEV.findall(text), *_RDMA_LINK.findall(text)):
            self._add(self.interfaces, (host, interface), name if port == "1" else f"{name}:{port}")
        cards = list(_CARD.finditer(text))
        for card, end in zip(cards, [*(after.start() for after in cards[1:]), len(text)], strict=False):
            body = text[card.end() : end]
            ports = list(_PORT.finditer(body))
            for begin, number in [(0, "1")] if not ports else [(port.start(), port[1]) for port in ports]:
                stop = next((port.start() for port in ports if port.start() > begin), len(body))
                name = card[1] if number == "1" else f"{card[1]}:{number}"
                for gid in _GID.findall(body[begin:stop]):
                    self._add_gid(gid, host, name)
                for lid in _LID.findall(body[begin:stop]):
                    self._add_lid(int(lid, 0), host, name)

    def add_tree(self, tree: Sysfs, host: str) -> None:
        """What a server's sysfs says."""
        for port in rdma_ports(tree):
            name = port.device if port.port == 1 else f"{port.device}:{port.port}"
            self._add_lid(port.lid, host, name)
            for gid in port.gids:
                self._add_gid(gid.address, host, name)
                if gid.interface:
                    self._add(self.interfaces, (host, gid.interface), name)

    def place_of(self, gid: str) -> Place | None:
        """The host and the NIC that speak as this GID."""
        known = _as_gid(gid)
        return None if known is None else self.gids.get(known)

    def _add_gid(self, text: str, host: str, nic: str) -> None:
        if (gid := _as_gid(text)) is None:
            return
        self._add(self.gids, gid, (host, nic))
        if (ipv4 := ipaddress.IPv6Address(gid).ipv4_mapped) is not None:
            self._add(self.addresses, str(ipv4), host)

    def _add_lid(self, lid: int, host: str, nic: str) -> None:
        if 0 < lid < 0xFFFF:  # 0 on Ethernet, 65535 without a subnet manager
            self._add(self.lids, lid, (host, nic))

    def _add(self, known: dict, key: object, value: object) -> None:  # type: ignore[type-arg]
        if known.setdefault(key, value) != value or (id(known), key) in self._unsure:
            self._unsure.add((id(known), key))
            known.pop(key, None)


def _as_gid(text: str) -> str | None:
    """``fe:80:00:...`` in bytes, as Mooncake writes it, is one, too."""
    octets = text.split(":")
    if len(octets) == 16:
        text = ":".join(octets[i] + octets[i + 1] for i in range(0, 16, 2))
    try:
        gid = ipaddress.IPv6Address(text)
    except ValueError:
        return None
    return None if int(gid) == 0 else str(gid)
