"""What tools tell of one server's NICs or GPUs alone, and the server that is made of it.

``ibstat``, ``ibdev2netdev``, ``ibstatus``, ``rdma link``, ``rdma dev``, ``ibv_devinfo``, ``ethtool``, ``mlxlink`` and,
for a whole InfiniBand fabric, ``iblinkinfo`` know NICs; ``rocm-smi`` and ``amd-smi`` GPUs. Several of them may be given
for one server, by ``name=FILE`` with the same name; what none of them tells is assumed, and said. Formats are those of
rdma-core, iproute2, ethtool and mstflint. ibstat, ibstatus and ``ibv_devinfo -v`` tell rates, ``rdma link`` never.
``mlxlink`` does not name its port: the command before it does, or who gives the file (`port_of_command`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from optcc.discover.given import Given
from optcc.discover.nic_choice import (
    ETHERNET,
    INFINIBAND,
    MAX_DEVICES,
    NicCandidate,
    for_training,
    is_virtual,
    note_by_name,
    one_per_port,
)
from optcc.discover.pasted import json_values
from optcc.discover.rails import Clue, Clues
from optcc.discover.topology import Assumed, counted, listed, located
from optcc.errors import InputError
from optcc.values.cluster import Nic, Server

IN_YAML = "optcc topo ... -o FILE.yaml, and {} in that file"


@dataclass(frozen=True)
class PartNic:
    """A port.

    rate : bytes per second, None where the tool does not tell; up : has a link
    fabric : InfiniBand, Ethernet or empty for unknown; gpu : the GPU beside it, where the tool tells
    model : of its card, empty for unknown; card : its System image GUID, which all its functions share, or empty
    port : what tells the same port again, where a card shows it as two functions (`port_identity`), else empty
    """

    name: str
    rate: Fraction | None = None
    up: bool = True
    fabric: str = ""
    gpu: int | None = None
    model: str = ""
    port: str = ""
    card: str = ""


_FUNCTION = re.compile(r"\w{1,40}s\d{1,4}f(\d{1,2})(?:np\d{1,2})?")
_IN_DOMAIN = re.compile(r"([a-z]{2,8})(P\d{1,5})?(p\d{1,4}s\d{1,4}f[01])")
"""systemd's name of one of two functions: its kind, the PCI domain but for the first, the place in it."""
_PER_HOST = 4
"""Node GUIDs that a card keeps for each of its PCI connections: of its ports there."""


def port_identity(name: str, image: str, node: str, port: str) -> str:
    """What two functions of one physical port have in common; empty where that is not told.

    image, node : System image GUID, which all functions of a card share, and node GUID, as tools write them
    port : its number on the device
    A card with two PCI connections (Socket Direct, DGX Spark) shows each port on both. The function's number tells the
    port: by the name that systemd gives the device, ``roceP2p1s0f0``, else by the node GUID.
    """
    whole, own = _guid(image), _guid(node)
    if not whole:
        return ""
    if named := _FUNCTION.fullmatch(name):
        return f"{whole:x}/{named[1]}/{port}"
    return f"{whole:x}/{(own - whole) % _PER_HOST}/{port}" if whole <= own < whole + 64 else ""


def card_identity(image: str) -> str:
    """A System image GUID, as tools write it, in one form; empty for none."""
    whole = _guid(image)
    return f"{whole:x}" if whole else ""


def _guid(text: str) -> int:
    return int("0" + re.sub("^0x|[^0-9a-f]", "", text.lower()), 16)


@dataclass(frozen=True)
class TopologyPart:
    """What one text tells.

    kind : of the text, such as ibstat; read : a line on what was read
    gpus : their numbers, none where it tells of none
    adds : several of its kind may be given for a server, each telling a part of it
    """

    where: str
    kind: str
    read: str
    nics: tuple[PartNic, ...] = ()
    gpus: frozenset[int] = frozenset()
    adds: bool = False


def server_of(parts: Sequence[TopologyPart], name: str, given: Given, assumed: Assumed) -> tuple[Server, Clues]:
    """One server of all that is known of it. Raises InputError where nothing tells NICs, or their rates."""
    where = parts[0].where
    told_of = _paired(_merged(parts), where, assumed)
    if not told_of:
        raise InputError(
            "GPUs without NICs",
            where=where,
            expected="a text that has NICs beside it",
            got=listed([part.read for part in parts]),
            hint=f"Give both by one name: {name}={where} {name}=ibstat.txt.",
        )
    nics = _physical(_with_link(told_of, name, where, given, assumed), where, given, assumed)
    rates = _rates(nics, where, given, assumed)
    found = [
        NicCandidate(nic.name, f"{where}: {nic.name}", rates[nic.name], fabric=nic.fabric, port=nic.port,
                  model=("card", nic.model) if nic.model else None,
                  asked=given.wanted(nic.name) is True, elsewhere=nic.name in given.elsewhere)
        for nic in nics
    ]  # fmt: skip
    chosen = {nic.name for nic in for_training(one_per_port(found, where, assumed), assumed)}
    numbers = sorted(frozenset[int]().union(*(part.gpus for part in parts)))
    if numbers:
        unknown = "what joins the GPUs is not told at its rate; NVLink or xGMI counts as unknown"
        assumed.add(where, unknown, IN_YAML.format("nvlink:"))
    else:
        assumed.add(where, "no GPU is told of; one per NIC is assumed", IN_YAML.format("gpus:"))
    beside = {nic.name: nic.gpu for nic in nics if nic.gpu is not None and nic.gpu in numbers}
    if not beside:
        in_order = "which GPU is beside which NIC is not told; NICs are dealt out in order"
        assumed.add(where, in_order, IN_YAML.format("gpu:"))
    made = []
    for nic in (nic for nic in nics if nic.name in chosen):
        gpu = numbers.index(beside[nic.name]) if nic.name in beside else None
        made.append(Nic(nic.name, rates[nic.name], rates[nic.name], gpu=gpu))
    with located(where):
        server = Server(name, tuple(made), len(numbers) or len(made))
    return server, {(name, nic): Clue((gpu,)) for nic, gpu in beside.items() if nic in chosen}


def _with_link(nics: Sequence[PartNic], server: str, where: str, given: Given, assumed: Assumed) -> list[PartNic]:
    """Those that --nics leaves, and that are up or that it names."""
    kept = []
    for nic in nics:
        wanted = given.wanted(nic.name)
        if not nic.up and wanted is None:
            note_down(nic.name, server, where, assumed)
        elif wanted is not False:
            kept.append(nic)
    if not kept:
        given.check_seen()
        names = listed([nic.name for nic in nics])
        raise InputError("no NIC with a link", where=where, expected="one that is up", got=names)
    return kept


def _physical(nics: Sequence[PartNic], where: str, given: Given, assumed: Assumed) -> list[PartNic]:
    """Without virtual functions of cards whose own port is there: they share its rate. Those that --nics names stay."""
    virtual = {nic.name for nic in nics if is_virtual(("0x15b3", hex(int("0" + re.sub(r"\D", "", nic.model)))))}
    cards = {nic.card for nic in nics if nic.name not in virtual} - {""}
    shared = [nic.name for nic in nics if nic.name in virtual and nic.card in cards and not given.wanted(nic.name)]
    if shared:
        what = f"virtual functions of cards that count once: skipped {listed(shared, 16)}"
        assumed.add(where, what, "list those that count in --nics")
    return [nic for nic in nics if nic.name not in shared]


def note_down(nic: str, server: str, where: str, assumed: Assumed) -> None:
    """That a NIC is left out."""
    fix = f"--nics with it, and --fail {server}/{nic} if it has failed"
    assumed.add(f"{where}: {nic}", "skipped, its link is down", fix)


def _paired(nics: Sequence[PartNic], where: str, assumed: Assumed) -> Sequence[PartNic]:
    """Where no GUID is told, as by ``rdma link`` alone: four devices that are two functions in each of two PCI domains,
    by names and states alike but for the domain, are one card of two ports, each of which shows twice."""
    named = [_IN_DOMAIN.fullmatch(nic.name) for nic in nics]
    found = [(match[2] or "", match[1] + match[3], nic.up) for match, nic in zip(named, nics, strict=True) if match]
    domains = {domain: {place: up for other, place, up in found if other == domain} for domain, _, _ in found}
    first, *others = domains.values() or [{}]
    if any(nic.port or nic.card for nic in nics) or not len(found) == len(nics) == 4 or others != [first]:
        return nics
    what = "by their names two functions of each port of one card, as on DGX Spark; no GUID tells"
    assumed.add(where, what, "what rdma dev prints beside it, or list those that count in --nics")
    return [replace(nic, port=f"by name/{place}") for nic, (_, place, _) in zip(nics, found, strict=True)]


def _rates(nics: Sequence[PartNic], where: str, given: Given, assumed: Assumed) -> dict[str, Fraction]:
    rates = {nic.name: given.rate_of(nic.name) or nic.rate or given.nic_rate or Fraction(0) for nic in nics}
    if missing := [nic for nic, rate in rates.items() if not rate]:
        raise InputError(
            "the rates of NICs are not told",
            where=where,
            expected="--nic-rate, such as --nic-rate 400Gb/s",
            got=f"none for {listed(missing)}",
        )
    for nic in nics:
        if nic.rate == rates[nic.name] and given.rate_of(nic.name) is None:
            note_by_name(nic.name, where, assumed)
    return rates


def _merged(parts: Iterable[TopologyPart]) -> list[PartNic]:
    """NICs of all parts; of one that several tell, what each of them knows."""
    found: dict[str, PartNic] = {}
    for nic in (nic for part in parts for nic in part.nics):
        old = found.get(nic.name)
        if old is None:
            found[nic.name] = nic
        else:
            gpu = old.gpu if old.gpu is not None else nic.gpu
            found[nic.name] = PartNic(nic.name, old.rate or nic.rate, old.up and nic.up, old.fabric or nic.fabric, gpu,
                                      old.model or nic.model, old.port or nic.port, old.card or nic.card)  # fmt: skip
    return list(found.values())


def rates_told(parts: Sequence[TopologyPart], server: str, given: Given, assumed: Assumed) -> Given:
    """`given` with the rates of NICs that `parts` tell, and without NICs that they tell to be down."""
    nics = _merged(parts)
    rates = tuple((nic.name, nic.rate) for nic in nics if nic.rate)
    found = replace(given, rates=(*given.rates, *rates))
    down = [nic.name for nic in nics if not nic.up and given.wanted(nic.name) is None]
    for name in down:
        note_down(name, server, parts[0].where, assumed)
    # Where --nics lists what counts, nothing else does.
    return (
        replace(found, nics=(*given.nics, *down), all_but=True) if down and (given.all_but or not given.nics) else found
    )


def told(where: str, kind: str, nics: Sequence[PartNic], gpus: Iterable[int] = (), adds: bool = False) -> TopologyPart:
    """A part, and its line: ``ibstat: 8 NICs (mlx5_0, ...)``."""
    numbers, said = frozenset(gpus), []
    if nics:
        said.append(f"{counted(len(nics), 'NIC')} ({listed([nic.name for nic in nics])})")
    if numbers:
        said.append(counted(len(numbers), "GPU"))
    return TopologyPart(where, kind, f"{kind}: {', '.join(said)}", tuple(nics), numbers, adds)


def port_name(nic: str, port: str) -> str:
    """``mlx5_0`` for port 1, else ``mlx5_0:2``."""
    return nic if port == "1" else f"{nic}:{port}"


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


def read_ibstatus(text: str, path: str) -> TopologyPart:
    """Ports with rate, state and link layer."""
    nics = []
    for name, port, body in _sections(_STATUS, text):
        fields = _fields(body)
        rate = _gbps(fields.get("rate", ""))
        up = "ACTIVE" in fields.get("state", "ACTIVE")
        nics.append(PartNic(port_name(name, port), rate, up, _fabric(fields.get("link_layer", ""))))
    return checked("ibstatus", nics, path)


def read_rdma_link_text(text: str, path: str) -> TopologyPart:
    """Ports and their state, without rates; with ``rdma dev`` beside it, which are functions of one port."""
    known = {nic.name: nic for nic in _devices(text)}
    nics = []
    for link in _LINK.finditer(text):
        device = known.get(link[1])
        same = (device.port, device.card) if device is not None and link[2] == "1" else ("", "")
        nics.append(PartNic(port_name(link[1], link[2]), None, link[3] == "ACTIVE", port=same[0], card=same[1]))
    return checked("rdma link", nics, path)


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


def read_ethtool(text: str, path: str) -> TopologyPart:
    """Network interfaces with speed and link."""
    nics = []
    for name, _, body in _sections(_SETTINGS, text):
        fields = _fields(body)
        speed = re.match(r"(\d{1,7})Mb/s", fields.get("Speed", ""))
        rate = Fraction(int(speed[1]) * 10**6, 8) if speed and int(speed[1]) else None
        nics.append(PartNic(name, rate, fields.get("Link detected", "yes") == "yes", ETHERNET))
    return checked("ethtool", nics, path)


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


_CARD = re.compile(r"^\s*CA '([\w.+:-]{1,80})'", re.M)
_IBSTAT_PORT = re.compile(r"^\s*Port (\d{1,3}):\s*$", re.M)
_IBSTAT_FIELD = re.compile(r"^\s*(State|Physical state|Rate|Link layer):\s*(\S.*?)\s*$", re.M)
_OF_CARD = re.compile(r"^\s*(CA type|System image GUID|Node GUID):\s*(\S+)", re.M)
_NETDEV = re.compile(r"^\s*(?:[0-9a-f:.]+ )?([\w.+-]{1,80}) port (\d{1,3}) ==> (\S{1,80}) \((\w{1,20})\)", re.M)


def read_ibstat(text: str, path: str) -> TopologyPart:
    """Ports with rate and state. Raises InputError where none is complete."""
    nics = []
    for card, _, body in _sections(_CARD, text):
        own = dict(_OF_CARD.findall(body))
        for port, _, lines in _sections(_IBSTAT_PORT, body):
            fields = dict(_IBSTAT_FIELD.findall(lines))
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


def read_ibdev2netdev(text: str, path: str) -> TopologyPart:
    """Ports and whether their interface is up."""
    nics = [PartNic(port_name(m[1], m[2]), None, m[4].lower() == "up") for m in _NETDEV.finditer(text)]
    return checked("ibdev2netdev", nics, path)


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


_TYPES = re.compile(r"Link Type between two GPUs|LINK TYPE TABLE")
_ROCM_ROW = re.compile(r"^\s*GPU(\d{1,4})\s+(\S.*?)\s*$")
_BDF = r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_AMD_ROW = re.compile(rf"^\s*({_BDF})\s+(\S.*?)\s*$")
_AMD_CELL = re.compile(r"XGMI|PCIE|SELF|0|N/A|UNKNOWN")


def read_amd(text: str, path: str) -> TopologyPart:
    """GPUs and their links. Raises InputError where the table is not whole."""
    start = _TYPES.search(text)
    rows: dict[str, list[str]] = {}
    for line in text[start.end() :].splitlines()[1:] if start else []:
        row = _ROCM_ROW.match(line) or _AMD_ROW.match(line)
        cells = row[2].split() if row else []
        if row and all(_AMD_CELL.fullmatch(cell) for cell in cells):
            rows[row[1]] = cells
        elif rows and line.strip():
            break
    count = len(rows)
    wrong = next((name for name, cells in rows.items() if len(cells) != count), None)
    if not rows or wrong is not None or count > MAX_DEVICES:
        raise InputError(
            "a table of links that is not whole",
            where=path,
            expected="a row and a column for each GPU",
            got=f"{count} rows" if wrong is None else f"{len(rows[wrong])} cells in the row of {wrong}, {count} rows",
            hint="Was it wrapped by a narrow terminal, or cut?",
        )
    kinds = {cell for cells in rows.values() for cell in cells} & {"XGMI", "PCIE"}
    kind = "rocm-smi --showtopo" if start and "between" in start[0] else "amd-smi topology"
    joined = "xGMI" if "XGMI" in kinds else "PCIe" if kinds else "nothing that it tells"
    part = told(path, kind, (), range(count))
    return replace(part, read=f"{part.read}, joined by {joined}")


@dataclass(frozen=True)
class PartReader:
    """`fits` : whether a text is of this kind; `read` : (text, path) -> host -> part, the empty name for no host."""

    name: str
    fits: Callable[[str], bool]
    read: Callable[[str, str], Mapping[str, TopologyPart]]


def _one(read: Callable[[str, str], TopologyPart]) -> Callable[[str, str], Mapping[str, TopologyPart]]:
    return lambda text, path: {"": read(text, path)}


LISTS = (
    PartReader("ibstat", lambda text: _CARD.search(text) is not None and "Physical state:" in text, _one(read_ibstat)),
    PartReader("ibdev2netdev", lambda text: _NETDEV.search(text) is not None, _one(read_ibdev2netdev)),
    PartReader("rdma link -j", lambda text: '"ifname"' in text and '"physical_state"' in text, _one(read_rdma_link)),
    PartReader("rdma link", lambda text: _LINK.search(text) is not None, _one(read_rdma_link_text)),
    PartReader(
        "rdma dev",
        lambda text: _DEVICE.search(text) is not None or ('"sys_image_guid"' in text and '"ifname"' in text),
        _one(read_rdma_dev),
    ),
    PartReader("ibstatus", lambda text: _STATUS.search(text) is not None, _one(read_ibstatus)),
    PartReader(
        "ibv_devinfo", lambda text: _HCA.search(text) is not None and _PORT.search(text) is not None, _one(read_devinfo)
    ),
    PartReader(
        "ethtool", lambda text: _SETTINGS.search(text) is not None and "Link detected:" in text, _one(read_ethtool)
    ),
    PartReader(
        "mlxlink",
        lambda text: "Operational Info" in text and re.search("^Physical state\\s*:", text, re.M) is not None,
        _one(read_mlxlink),
    ),
    PartReader("iblinkinfo", lambda text: ")==>" in text and _FABRIC.search(text) is not None, read_iblinkinfo),
    PartReader("rocm-smi, amd-smi", lambda text: _TYPES.search(text) is not None, _one(read_amd)),
)
"""The kinds of lists, each told by its content."""
