"""NCCL's log (``NCCL_DEBUG=INFO``) as a topology: each host with the NICs that it uses and the GPUs of its ranks.

NICs are those of ``NET/IB : Using``, and those that NCCL has fused of them (``Made virtual device``, since 2.24), whose
speed it prints. Which GPU uses which NIC is told by the channels between servers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction

from optcc.discover.nccl_log import Log, parse_log
from optcc.discover.parts import PartNic, TopologyPart, told
from optcc.errors import InputError

MOST_HOSTS = 4096


def looks_like_nccl_log(text: str) -> bool:
    """The line with the NICs in use."""
    return " NCCL INFO " in text and "NET/IB" in text and ": Using" in text


def read_nccl_log(text: str, path: str) -> dict[str, TopologyPart]:
    """Host -> what the log tells of it. Raises InputError where it has no NICs."""
    log = parse_log(text)
    if not log.cards or len(log.cards) > MOST_HOSTS:
        raise InputError(
            "no NICs in the log, or too many hosts",
            where=path,
            expected="lines with NET/IB : Using, of NCCL_DEBUG=INFO",
            got=f"{len(log.cards)} hosts",
        )
    beside = _beside(log)
    found = {}
    for host, cards in log.cards.items():
        ports = {port for name in cards.values() if "+" in name for port in name.split("+")}
        nics = tuple(
            PartNic(name, _rate(log.speeds.get((host, name))), True, log.links.get((host, name), ""),
                    beside.get((host, number)))
            for number, name in cards.items()
            if name not in ports
        )  # fmt: skip
        found[host] = told(f"{path}: {host}", "NCCL's log", nics, log.gpus.get(host, ()), adds=True)
    return found


def _beside(log: Log) -> dict[tuple[str, int], int]:
    """(host, NCCL's number of a NIC) -> the GPU, counted on its host, that uses it most."""
    uses: dict[tuple[str, int], Counter[int]] = defaultdict(Counter)
    for (rank, _), numbers in log.channels.items():
        if rank.gpu is not None:
            for number, count in numbers.items():
                uses[rank.host, number][rank.gpu] += count
    return {place: min(of, key=lambda gpu: (-of[gpu], gpu)) for place, of in uses.items()}


def _rate(mbps: int | None) -> Fraction | None:
    return Fraction(mbps * 10**6, 8) if mbps else None
