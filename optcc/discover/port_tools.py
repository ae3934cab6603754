"""Ports as operators' tools print them: ``ibstatus``, ``rdma link``, ``rdma dev``, ``ibv_devinfo``, ``ethtool``,
``mlxlink``, and ``iblinkinfo`` for a whole InfiniBand fabric. Formats are those of rdma-core, iproute2, ethtool and
mstflint.

``ibv_devinfo`` tells rates with ``-v``, ``rdma link`` never. ``mlxlink`` does not name its port: the command before it
does, or who gives the file (`port_of_command`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction

from optcc.discover.nccl_trouble import port_name
from optcc.discover.nic_choice import ETHERNET, INFINIBAND
from optcc.discover.parts import PartNic, TopologyPart, card_identity, port_identity, told
from optcc.discover.pasted import json_values
from optcc.errors import InputError

MOST_PORTS = 1024
MOST_HOSTS = 65536
_NAME = r"([\w.+-]{1,80})"
_STATUS = re.compile(rf"^\s*Infiniband device '{_NAME}' port (\d{{1,3}}) status:", re.M)
_LINK = re.compile(
    rf"^\s*(?:link |\d{{1,4}}/\d{{1,4}}: ){_NAME}/(\d{{1,3}}):? (?:.{{0,200}} )?state (\w{{1,20}})\b", re.M
)
_DEVICE = re.compile(
    rf"^\s*\d{{1,4}}: {_NAME}: node_type \w{{1,16}} .{{0,80}}?"
    r"node_guid ([0-9a-f:]{1,40}) sys_image_guid ([0-9a-f:]{1,40})",
    re.M,
)
_HCA = re.compile(rf"^\s*hca_id:\s*{_NAME}\s*$", re.M)
_PORT = re.compile(r"^\s*port:\s*(\d{1,3})\s*$", re.M)
_FIELD = re.compile(r"^[ \t]*([A-Za-z_][\w /]{1,40}?)[ \t]*:[ \t]*(\S[^\n]*?)[ \t]*$", re.M)
_SETTINGS = re.compile(r"^\s*Settings for ([\w.@-]{1,32}):", re.M)
COMMAND = re.compile(
    r"^(?:[^\n]{0,80}[#$>]\s*)?(?:sudo )?(?:\S{0,80}/)?(mlxlink|mstlink|perfquery|ethtool)\b([^\n]{0,200})$", re.M
)
"""A shell's line that calls a tool which tells of one port."""
_ARGUMENT = re.compile(rf"(?:-d|--device|-C|--Ca|-S|--statistics)[ =]{{1,4}}(?:/dev/\w{{1,20}}/)?{_NAME}")
_CA = re.compile(r'^CA: (.{1,80}?):\s*$|^\s*0x[0-9a-f]{4,16} "\s*([^"\n]{1,80})"|^Switch: ', re.M)
_FABRIC = re.compile(
    r"^(?P<before>[^=\n]{0,160}?)\b(?P<port>\d{1,3})\[[^\]\n]{0,6}\] "
    r"==\((?P<link>[^)\n]{0,120}(?:\(\w+\))?[^)\n]{0,60})\)==>"
    r'(?P<after>[^"\n]{0,80})(?:"(?P<peer>[^"\n]{0,80})")?',
    re.M,
)
_OWN = re.compile(r'"\s*([^"\n]{1,80})"')
_NODE = re.compile(r"([A-Za-z0-9][\w.-]{0,254}) (?:HCA-(\d{1,3})|([a-z][\w.+-]{1,79}))")
_LANES = {"2.5": "2.5", "5.0": "5", "10.0": "10", "14.0625": "14", "25.78125": "25", "26.5625": "25", "53.125": "50",
          "106.25": "100", "212.5": "200"}  # fmt: skip
"""Gbaud of an InfiniBand lane -> Gb/s of it, as drivers count."""
_GENERATIONS = {"SDR": "2.5", "DDR": "5", "QDR": "10", "FDR10": "10", "FDR": "14", "EDR": "25", "HDR": "50",
                "NDR": "100", "XDR": "200"}  # fmt: skip


def looks_like_ibstatus(text: str) -> bool:
    """A port's heading."""
    return _STATUS.search(text) is not None


def read_ibstatus(text: str, path: str) -> TopologyPart:
    """Ports with rate, state and link layer."""
    nics = []
    for name, port, body in _sections(_STATUS, text):
        fields = _fields(body)
        rate = _gbps(fields.get("rate", ""))
        up = "ACTIVE" in fields.get("state", "ACTIVE")
        nics.append(PartNic(port_name(name, port), rate, up, _fabric(fields.get("link_layer", ""))))
    return checked("ibstatus", nics, path)


def looks_like_rdma_link_text(text: str) -> bool:
    """A link with its state."""
    return _LINK.search(text) is not None


def read_rdma_link_text(text: str, path: str) -> TopologyPart:
    """Ports and their state, without rates; with ``rdma dev`` beside it, which are functions of one port."""
    known = {nic.name: nic for nic in _devices(text)}
    nics = []
    for link in _LINK.finditer(text):
        device = known.get(link[1])
        same = (device.port, device.card) if device is not None and link[2] == "1" else ("", "")
        nics.append(PartNic(port_name(link[1], link[2]), None, link[3] == "ACTIVE", port=same[0], card=same[1]))
    return checked("rdma link", nics, path)


def looks_like_rdma_dev(text: str) -> bool:
    """The GUIDs of a device, as text or as JSON."""
    return _DEVICE.search(text) is not None or ('"sys_image_guid"' in text and '"ifname"' in text)


def read_rdma_dev(text: str, path: str) -> TopologyPart:
    """Which devices are functions of one port; it tells neither states nor rates."""
    return checked("rdma dev", _devices(text), path)


def _devices(text: str) -> list[PartNic]:
    found = [(match[1], match[3], match[2]) for match in _DEVICE.finditer(text)]
    for device in (device for _, value in json_values(text) if isinstance(value, list) for device in value):
        if isinstance(device, dict) and isinstance(device.get("ifname"), str) and "sys_image_guid" in device:
            found.append((device["ifname"], str(device["sys_image_guid"]), str(device.get("node_guid", ""))))
    return [
        PartNic(name, port=port_identity(name, image, node, "1"), card=card_identity(image))
        for name, image, node in found
    ]


def looks_like_devinfo(text: str) -> bool:
    """A card's heading, and a port of it."""
    return _HCA.search(text) is not None and _PORT.search(text) is not None


def read_devinfo(text: str, path: str) -> TopologyPart:
    """Ports with state; with their rates where it was called with -v."""
    nics = []
    for name, _, card in _sections(_HCA, text):
        own = _fields(card)
        for port, _, body in _sections(_PORT, card):
            fields = _fields(body)
            lanes = re.match(r"(\d{1,2})X", fields.get("active_width", ""))
            speed = re.match(r"(\d{1,4}(?:\.\d{1,6})?) Gbps", fields.get("active_speed", ""))
            rate = Fraction(speed[1]) * int(lanes[1]) * 10**9 / 8 if lanes and speed else None
            guids = own.get("sys_image_guid", ""), own.get("node_guid", "")
            nics.append(PartNic(port_name(name, port), rate or None, "ACTIVE" in fields.get("state", "ACTIVE"),
                                _fabric(fields.get("link_layer", "")), model=own.get("vendor_part_id", ""),
                                port=port_identity(name, *guids, port), card=card_identity(guids[0])))  # fmt: skip
    return checked("ibv_devinfo", nics, path)


def looks_like_ethtool(text: str) -> bool:
    """Settings of an interface."""
    return _SETTINGS.search(text) is not None and "Link detected:" in text


def read_ethtool(text: str, path: str) -> TopologyPart:
    """Network interfaces with speed and link."""
    nics = []
    for name, _, body in _sections(_SETTINGS, text):
        fields = _fields(body)
        speed = re.match(r"(\d{1,7})Mb/s", fields.get("Speed", ""))
        rate = Fraction(int(speed[1]) * 10**6, 8) if speed and int(speed[1]) else None
        nics.append(PartNic(name, rate, fields.get("Link detected", "yes") == "yes", ETHERNET))
    return checked("ethtool", nics, path)


def looks_like_mlxlink(text: str) -> bool:
    """Its first heading, and a field of it."""
    return "Operational Info" in text and re.search(r"^Physical state\s*:", text, re.M) is not None


def read_mlxlink(text: str, path: str, name: str | None = None) -> TopologyPart:
    """The port `name`, else that of the command before. Raises InputError where neither tells it."""
    name = name or port_of_command(text)
    if name is None:
        raise unnamed("mlxlink", path)
    fields = _fields(text)
    lanes, speed = re.match(r"(\d{1,2})x", fields.get("Width", "")), fields.get("Speed", "")
    found = re.match(r"(\d{1,4})G", speed)
    generation = _GENERATIONS.get(speed.removeprefix("IB-"))
    gbps = Fraction(generation) * int(lanes[1]) if generation and lanes else Fraction(found[1]) if found else None
    up = fields.get("State", "") == "Active"
    fabric = INFINIBAND if generation else ETHERNET if found else ""
    return checked("mlxlink", [PartNic(name, gbps and gbps * 10**9 / 8, up, fabric)], path)


def port_of_command(text: str) -> str | None:
    """The NIC, or interface, that the command pasted above a tool's output names."""
    for command in COMMAND.finditer(text):
        if found := _ARGUMENT.search(command[2]):
            return found[1]
        words = [word for word in command[2].split() if not word.startswith("-")]
        if command[1] == "ethtool" and words:
            return words[0]
    return None


def unnamed(tool: str, path: str) -> InputError:
    """That a tool's output does not say of which port it is."""
    return InputError(
        f"{tool}'s output, which does not name its port",
        where=path,
        expected=f"SERVER/NIC={path}, or the command above the output",
        got="neither",
        hint="Or a copy of the server's sysfs, which has links, slots and counters of all ports.",
    )


def looks_like_iblinkinfo(text: str) -> bool:
    """Its arrows."""
    return ")==>" in text and _FABRIC.search(text) is not None


def read_iblinkinfo(text: str, path: str) -> dict[str, TopologyPart]:
    """Host -> its ports, by the names that hosts give their NICs (``node1 mlx5_0``; HCA-1 is the first). Links are told
    from one end or from both."""
    nics: dict[str, dict[str, PartNic]] = defaultdict(dict)
    own = ""
    for line in text.splitlines():
        if head := _CA.match(line):
            own = head[1] or ""
        if (link := _FABRIC.match(line)) is None:
            continue
        rate, up = _of_link(link["link"])
        near = _OWN.search(link["before"])
        far = re.search(r"(\d{1,3})\[", link["after"])
        ends = ((near[1] if near else own, link["port"]), (link["peer"] or "", far[1] if far else "1"))
        for description, port in ends:
            if node := _NODE.fullmatch(description.strip()):
                name = port_name(f"mlx5_{int(node[2]) - 1}" if node[2] else node[3], port)
                nics[node[1]].setdefault(name, PartNic(name, rate, up, INFINIBAND))
    if not nics or len(nics) > MOST_HOSTS:
        expected = 'links of hosts, as CA: node1 mlx5_0: or "node1 mlx5_0"'
        raise InputError("no host in iblinkinfo's output", where=path, expected=expected, got=f"{len(nics)} hosts")
    return {host: checked("iblinkinfo", list(each.values()), f"{path}: {host}") for host, each in nics.items()}


def _of_link(text: str) -> tuple[Fraction | None, bool]:
    """Bytes per second, and whether there is a link, of ``4X 106.25 Gbps Active/ LinkUp``."""
    found = re.search(r"(\d{1,2})X\s+(\d{1,4}(?:\.\d{1,6})?) Gbps", text)
    up = "Active" in text and "LinkUp" in text
    return (Fraction(_LANES.get(found[2], found[2])) * int(found[1]) * 10**9 / 8 if found else None), up


def checked(kind: str, nics: list[PartNic], path: str) -> TopologyPart:
    """The part. Raises InputError for no port, one twice, or too many."""
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


def _sections(heading: re.Pattern[str], text: str) -> Iterator[tuple[str, str, str]]:
    """The first group of each heading, the second if there is one, and the text up to the next one."""
    found = list(heading.finditer(text))
    for match, end in zip(found, [*(after.start() for after in found[1:]), len(text)], strict=False):
        yield match[1], match[2] if heading.groups > 1 else "", text[match.end() : end]


def _fields(text: str) -> dict[str, str]:
    """``name: value`` lines; of a name that comes twice the first."""
    found: dict[str, str] = {}
    for name, value in _FIELD.findall(text):
        found.setdefault(name, value)
    return found


def _gbps(text: str) -> Fraction | None:
    match = re.match(r"(\d{1,6}(?:\.\d{1,3})?) Gb", text)
    return Fraction(match[1]) * 10**9 / 8 or None if match else None


def _fabric(text: str) -> str:
    return text if text in (ETHERNET, INFINIBAND) else ""
