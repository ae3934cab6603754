"""The NICs that a job uses: as its log says by channel, else by what it may use, else those beside its GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from optcc.diagnose.loads import RankPlace, Use
from optcc.diagnose.ports import IN, OUT, NicDirections
from optcc.discover.nccl_log import Log, wanted_by


def use_of(members: Sequence[RankPlace], log: Log, ports: NicDirections) -> Use:
    """NICs of each server, with their channels as weights where the log has them for every server."""
    return _by_channels(members, log, ports) or Use.equally(
        {server: _allowed(server, members, log, ports) for server in dict.fromkeys(m.server for m in members)}
    )


def _by_channels(members: Sequence[RankPlace], log: Log, ports: NicDirections) -> Use | None:
    found: dict[str, list[dict[int, float]]] = {member.server: [{}, {}] for member in members}
    cards = {ports.server(host): names for host, names in log.cards.items()}
    for (told, way), numbers in log.channels.items():
        if told.ranks not in (None, len(members)):
            continue  # another communicator's
        if told.rank >= len(members):
            return None
        server = members[told.rank].server
        if ports.server(told.host) not in (None, server):
            continue
        for number, count in numbers.items():
            nics = _named(cards.get(server, {}).get(number), server, ports)
            if not nics:
                return None
            for nic in nics:
                weights = found[server][OUT if way == "send" else IN]
                weights[nic] = weights.get(nic, 0.0) + count / len(nics)
    return Use(found) if all(way for ways in found.values() for way in ways) else None


def _named(name: str | None, server: str, ports: NicDirections) -> list[int]:
    """The NIC of this name, or those that NCCL has fused under it; none where the topology lacks one of them."""
    if name is None:
        return []
    whole = ports.nic(server, name)
    parts = [whole] if whole is not None else [ports.nic(server, part) for part in name.split("+")]
    known = [nic for nic in parts if nic is not None]
    return known if len(known) == len(parts) == len(set(known)) else []


def _allowed(server: str, members: Sequence[RankPlace], log: Log, ports: NicDirections) -> list[int]:
    gpus = {member.gpu for member in members if member.server == server}
    nics = {nic: ports.names[nic].partition("/")[2] for nic in ports.nics_of(server)}
    listed: Iterable[str] | None = next(
        (names.values() for host, names in log.cards.items() if ports.server(host) == server), None
    )
    if listed is None and not log.hca:  # the log may be in files of its own
        listed = next((names for host, names in ports.facts.cards.items() if ports.server(host) == server), None)
    if listed is not None:
        given = [nic for name in listed if (nic := ports.nic(server, name)) is not None]
    elif log.hca:
        given = list(wanted_by(log.hca, nics))
    else:
        given = []
    allowed = given or list(nics)
    beside = [nic for nic in ports.beside(server, gpus) if nic in allowed]
    return beside or allowed
