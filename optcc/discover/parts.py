"""What tools tell of one server's NICs or GPUs alone, and the server that is made of it.

``ibstat``, ``ibdev2netdev`` and ``rdma link`` know NICs, ``rocm-smi`` and ``amd-smi`` GPUs. Several of them may be
given for one server, by ``name=FILE`` with the same name; what none of them tells is assumed, and said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from optcc.discover.bonds import note_by_name
from optcc.discover.card_ports import is_virtual, one_per_port
from optcc.discover.given import Given
from optcc.discover.nic_choice import NicCandidate, for_training
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
