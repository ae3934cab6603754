"""Lists of RDMA ports as tools print them: ``ibstat``, ``ibdev2netdev``, ``rdma link -j``.

ibstat and ibdev2netdev are of rdma-core and of MLNX_OFED, rdma of iproute2; ibstat alone tells rates, in Gb/s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fractions import Fraction

from optcc.discover.nic_choice import ETHERNET, INFINIBAND
from optcc.discover.parts import PartNic, TopologyPart, told
from optcc.errors import InputError

MOST_PORTS = 1024
_CARD = re.compile(r"^\s*CA '([\w.+:-]{1,80})'", re.M)
_PORT = re.compile(r"^\s*Port (\d{1,3}):\s*$", re.M)
_FIELD = re.compile(r"^\s*(State|Physical state|Rate|Link layer):\s*(\S.*?)\s*$", re.M)
_NETDEV = re.compile(r"^\s*(?:[0-9a-f:.]+ )?([\w.+-]{1,80}) port (\d{1,3}) ==> (\S{1,80}) \((\w{1,20})\)", re.M)


def looks_like_ibstat(text: str) -> bool:
    """A card's heading and a port's state."""
    return _CARD.search(text) is not None and "Physical state:" in text


def read_ibstat(text: str, path: str) -> TopologyPart:
    """Ports with rate and state. Raises InputError where none is complete."""
    nics = []
    for card, body in _sections(_CARD, text):
        for port, lines in _sections(_PORT, body):
            fields = dict(_FIELD.findall(lines))
            rate = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)(?: ?Gb(?:/s|ps))?", fields.get("Rate", ""))
            if "State" not in fields:
                raise InputError("a port without a state", where=f"{path}: {card}", expected="State:, as ibstat prints")
            speed = Fraction(rate[1]) * 10**9 / 8 if rate and Fraction(rate[1]) else None
            fabric = fields.get("Link layer", "")
            kind = fabric if fabric in (ETHERNET, INFINIBAND) else ""
            nics.append(PartNic(_named(card, port), speed, fields["State"] == "Active", kind))
    return _part("ibstat", nics, path)


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
    nics = [PartNic(_named(m[1], m[2]), None, m[4].lower() == "up") for m in _NETDEV.finditer(text)]
    return _part("ibdev2netdev", nics, path)


def looks_like_rdma_link(text: str) -> bool:
    """A list of objects with the fields of ``rdma link -j``."""
    return text.lstrip()[:1] == "[" and '"ifname"' in text and '"physical_state"' in text


def read_rdma_link(text: str, path: str) -> TopologyPart:
    """Ports and their state."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError("not JSON", where=path, expected="what rdma link -j prints", got=str(error)[:80]) from None
    nics = []
    for link in value if isinstance(value, list) else []:
        name, port = (link.get("ifname"), link.get("port")) if isinstance(link, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(port, int):
            raise InputError("not a link", where=path, expected="ifname, port and state", got=str(link)[:60])
        nics.append(PartNic(_named(name, str(port)), None, link.get("state") == "ACTIVE"))
    return _part("rdma link", nics, path)


def _named(card: str, port: str) -> str:
    return card if port == "1" else f"{card}:{port}"


def _part(kind: str, nics: list[PartNic], path: str) -> TopologyPart:
    names = [nic.name for nic in nics]
    if not nics:
        raise InputError("no port", where=path, expected=f"ports, as {kind} prints them", got="none")
    if len(set(names)) < len(names) or len(names) > MOST_PORTS:
        twice = next((name for name in names if names.count(name) > 1), f"{len(names)} ports")
        raise InputError(
            "a port twice, or too many",
            where=path,
            expected=f"each port of one server once, at most {MOST_PORTS}",
            got=twice,
            hint="Give one file for each server.",
        )
    return told(path, kind, nics)
