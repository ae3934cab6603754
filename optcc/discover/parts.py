"""What tools tell of one server's NICs or GPUs alone, and the server that is made of it.

``ibstat``, ``ibdev2netdev`` and ``rdma link`` know NICs, ``rocm-smi`` and ``amd-smi`` GPUs. Several of them may be
given for one server, by ``name=FILE`` with the same name; what none of them tells is assumed, and said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from optcc.cluster import Nic, Server
from optcc.discover.given import Given
from optcc.discover.nic_choice import Candidate, for_training
from optcc.discover.rails import Clue, Clues
from optcc.discover.topology import Assumed, counted, listed, located
from optcc.errors import InputError

IN_YAML = "optcc topo ... -o FILE.yaml, and {} in that file"


@dataclass(frozen=True)
class PartNic:
    """A port. rate : bytes per second, None where the tool does not tell; up : has a link; fabric : InfiniBand,
    Ethernet or empty for unknown; gpu : the GPU beside it, where the tool tells."""

    name: str
    rate: Fraction | None = None
    up: bool = True
    fabric: str = ""
    gpu: int | None = None


@dataclass(frozen=True)
class Part:
    """What one text tells: NICs, the number of GPUs (0: nothing), a line on what was read."""

    where: str
    read: str
    nics: tuple[PartNic, ...] = ()
    gpus: int = 0


def server_of(parts: Sequence[Part], name: str, given: Given, assumed: Assumed) -> tuple[Server, Clues]:
    """One server of all that is known of it. Raises InputError where nothing tells NICs, or their rates."""
    where = parts[0].where
    nics = _merged(parts)
    if not nics:
        raise InputError(
            "GPUs without NICs",
            where=where,
            expected="a text that has NICs beside it",
            got=f"{listed([part.read for part in parts])}",
            hint=f"Give both by one name: {name}={where} {name}=ibstat.txt.",
        )
    kept = []
    for nic in nics:
        wanted = given.wanted(nic.name)
        if wanted is False:
            continue
        if not nic.up and wanted is None:
            fix = f"--nics with it, and --fail {name}/{nic.name} if it has failed"
            assumed.add(f"{where}: {nic.name}", "skipped, its link is down", fix)
            continue
        kept.append(nic)
    if not kept:
        given.check_seen()
        names = listed([nic.name for nic in nics])
        raise InputError("no NIC with a link", where=where, expected="one that is up", got=names)
    rates = {nic.name: given.rate_of(nic.name) or nic.rate or given.nic_rate for nic in kept}
    if missing := [nic for nic, rate in rates.items() if not rate]:
        raise InputError(
            "the rates of NICs are not told",
            where=where,
            expected="--nic-rate, such as --nic-rate 400Gb/s",
            got=f"none for {listed(missing)}",
        )
    found = [
        Candidate(nic.name, f"{where}: {nic.name}", rates[nic.name] or Fraction(0), fabric=nic.fabric,
                  asked=given.wanted(nic.name) is True)
        for nic in kept
    ]  # fmt: skip
    chosen = {nic.name for nic in for_training(found, assumed)}
    gpus = max((part.gpus for part in parts), default=0)
    if not gpus:
        gpus = len(chosen)
        assumed.add(where, "no GPU is told of; one per NIC is assumed", IN_YAML.format("gpus:"))
    else:
        unknown = "what joins the GPUs is not told at its rate; NVLink or xGMI counts as unknown"
        assumed.add(where, unknown, IN_YAML.format("nvlink:"))
    beside = {nic.name: nic.gpu for nic in kept if nic.gpu is not None and nic.gpu < gpus}
    with located(where):
        made = tuple(Nic(n, rates[n] or 0, rates[n] or 0, gpu=beside.get(n)) for n in rates if n in chosen)  # type: ignore[arg-type]
        server = Server(name, made, gpus)
    if not beside:
        in_order = "which GPU is beside which NIC is not told; NICs are dealt out in order"
        assumed.add(where, in_order, IN_YAML.format("gpu:"))
    return server, {(name, nic): Clue((gpu,)) for nic, gpu in beside.items() if nic in chosen}


def _merged(parts: Iterable[Part]) -> list[PartNic]:
    """NICs of all parts; of one that several tell, what each of them knows."""
    found: dict[str, PartNic] = {}
    for nic in (nic for part in parts for nic in part.nics):
        old = found.get(nic.name)
        if old is None:
            found[nic.name] = nic
        else:
            gpu = old.gpu if old.gpu is not None else nic.gpu
            found[nic.name] = PartNic(nic.name, old.rate or nic.rate, old.up and nic.up, old.fabric or nic.fabric, gpu)
    return list(found.values())


def told(kind: str, part_nics: Sequence[PartNic], gpus: int) -> str:
    """``ibstat: 8 NICs (mlx5_0, ...)``."""
    said = []
    if part_nics:
        said.append(f"{counted(len(part_nics), 'NIC')} ({listed([nic.name for nic in part_nics])})")
    if gpus:
        said.append(counted(gpus, "GPU"))
    return f"{kind}: {', '.join(said)}"
