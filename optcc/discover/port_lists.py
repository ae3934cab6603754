"""Lists of RDMA ports as tools print them: ``ibstat``, ``ibdev2netdev``, ``rdma link -j``.

ibstat and ibdev2netdev are of rdma-core and of MLNX_OFED, rdma of iproute2; ibstat alone tells rates, in Gb/s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

from optcc.discover.nccl_trouble import port_name
from optcc.discover.nic_choice import ETHERNET, INFINIBAND
from optcc.discover.parts import PartNic, TopologyPart, card_identity, port_identity
from optcc.discover.pasted import json_values
from optcc.discover.port_tools import checked
from optcc.errors import InputError

_CARD = re.compile(r"^\s*CA '([\w.+:-]{1,80})'", re.M)
_PORT = re.compile(r"^\s*Port (\d{1,3}):\s*$", re.M)
_FIELD = re.compile(r"^\s*(State|Physical state|Rate|Link layer):\s*(\S.*?)\s*$", re.M)
_OF_CARD = re.compile(r"^\s*(CA type|System image GUID|Node GUID):\s*(\S+)", re.M)
_NETDEV = re.compile(r"^\s*(?:[0-9a-f:.]+ )?([\w.+-]{1,80}) port (\d{1,3}) ==> (\S{1,80}) \((\w{1,20})\)", re.M)


def looks_like_ibstat(text: str) -> bool:
    """A card's heading and a port's state."""
    return _CARD.search(text) is not None and "Physical state:" in text


def read_ibstat(text: str, path: str) -> TopologyPart:
    """Ports with rate and state. Raises InputError where none is complete."""
    nics = []
    for card, body in _sections(_CARD, text):
        own = dict(_OF_CARD.findall(body))
        for port, lines in _sections(_PORT, body):
            fields = dict(_FIELD.findall(lines))
            rate = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)(?: ?Gb(?:/s|ps))?", fields.get("Rate", ""))
            if "State" not in fields:
                raise InputError("a port without a state", where=f"{path}: {card}", expected="State:, as ibstat prints")
            speed = Fraction(rate[1]) * 10**9 / 8 if rate and Fraction(rate[1]) else None
            fabric = fields.get("Link layer", "")
            kind = fabric if fabric in (ETHERNET, INFINIBAND) else ""
            guids = own.get("System image GUID", ""), own.get("Node GUID", "")
            same = port_identity(card, *guids, port)
            nics.append(PartNic(port_name(card, port), speed, fields["State"] == "Active", kind,
                                model=own.get("CA type", ""), port=same, card=card_identity(guids[0])))  # fmt: skip
    return checked("ibstat", nics, path)


def _sections(heading: re.Pattern[str], text: str) -> Iterator[tuple[str, str]]:
    """The name in each heading, and the text up to the next one."""
    found = list(heading.finditer(text))
    for match, end in zip(found, [*(after.start() for after in found[1:]), len(text)], strict=False):
        yield match[1], text[match.end() : end]


def looks_like_ibdev2netdev(text: str) -> bool:
    """Its arrow."""
    return _NETDEV.search(text) is not None


def read_ibdev2netdev(text: str, path: str) -> TopologyPart:
    """Ports and whether their interface is up."""
    nics = [PartNic(port_name(m[1], m[2]), None, m[4].lower() == "up") for m in _NETDEV.finditer(text)]
    return checked("ibdev2netdev", nics, path)


def looks_like_rdma_link(text: str) -> bool:
    """A list of objects with the fields of ``rdma link -j``."""
    return '"ifname"' in text and '"physical_state"' in text


def read_rdma_link(text: str, path: str) -> TopologyPart:
    """Ports and their state."""
    values = [value for _, value in json_values(text) if isinstance(value, list)]
    if len(values) != 1:
        got = f"{len(values)} of them"
        raise InputError("not JSON", where=path, expected="one list, as rdma link -j prints it", got=got)
    nics = []
    for link in values[0]:
        name, port = (link.get("ifname"), link.get("port")) if isinstance(link, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(port, int):
            raise InputError("not a link", where=path, expected="ifname, port and state", got=str(link)[:60])
        nics.append(PartNic(port_name(name, str(port)), None, link.get("state") == "ACTIVE"))
    return checked("rdma link", nics, path)
