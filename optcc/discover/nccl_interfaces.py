"""The <net>s of NCCL's XML that are no NICs: virtual interfaces, and virtual functions of cards that are there, too."""

from __future__ import annotations

from optcc.discover.card_ports import is_virtual
from optcc.discover.interface_names import Standing, standing
from optcc.discover.nccl_ports import NcclPort, model_of
from optcc.discover.nic_choice import LISTED
from optcc.discover.pci import card_of, pci_of
from optcc.discover.topology import Assumed, listed
from optcc.errors import InputError

_WIRELESS = "0x0280"  # the PCI class of networks that are none of the known ones


def without_virtual(ports: list[NcclPort], path: str, assumed: Assumed) -> list[NcclPort]:
    """Without interfaces that are no hardware, or stand for hardware that is here, too; and without virtual functions
    of cards that are here."""
    names = {_name(port) for port in ports}
    real = {port: standing(_name(port), names, _on_card(port)) for port in ports}
    best = min(real.values(), default=Standing.CARD)
    apart = [port for port in ports if real[port] > min(best, Standing.STAND_IN) and not port.asked]
    if apart:
        kind = "virtual interfaces, or on no PCI card of a wired network where other NICs are"
        assumed.add(path, f"{kind}: skipped {listed([port.name for port in apart], 16)}", LISTED)
    if apart and len(apart) == len(ports):
        got = listed([port.name for port in ports])
        hint = "If one of them is the NIC to use, name it in --nics."
        raise InputError("no NIC but virtual interfaces", where=path, expected="a card's", got=got, hint=hint)
    ports = [port for port in ports if port not in apart]
    cards = {_bus(port) for port in ports if not is_virtual(model_of(port))} - {None}
    functions = [port for port in ports if is_virtual(model_of(port)) and _bus(port) in cards and not port.asked]
    if functions:
        others = listed([port.name for port in functions], 16)
        assumed.add(path, f"virtual functions of cards that count themselves: skipped {others}", LISTED)
    return [port for port in ports if port not in functions]


def _on_card(port: NcclPort) -> bool:
    card = pci_of(port.element)
    if card is None:
        return port.element.get("gdr", "0") != "0"  # what a GPU reads and writes is on PCI
    return not card.get("class", "").startswith(_WIRELESS)


def _bus(port: NcclPort) -> tuple[str, str] | None:
    """Of a card at 0000:13:00.0, ``0000:13`` and its vendor: its virtual functions are on the same bus."""
    card, model = card_of(port.element), model_of(port)
    return (card.rpartition(":")[0], model[0]) if card and model else None


def _name(port: NcclPort) -> str:
    return port.element.get("name") or port.name
