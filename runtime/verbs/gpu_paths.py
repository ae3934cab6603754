"""What the doctor says about GPUs and NICs: what the driver offers, and for every pair what really carries bytes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from optcc.machine.findings import PartFinding
from optcc.machine.rdma import NicAddress, can_load, rdma_ports
from optcc.runtime.devices.gpu_memory import PathChoice, PathRefusedError, choose, examine_gpu_memory, gpu_count


def examine_gpus() -> list[PartFinding]:
    """What the driver offers; where cupy and NICs are here too, every GPU's path to every NIC, by traffic."""
    findings = examine_gpu_memory()
    if importlib.util.find_spec("cupy") and can_load():
        addresses = [port.address() for port in rdma_ports() if port.active]
        findings += examine_pairs(_count(), [address for address in addresses if address is not None], _try)
    return findings


def examine_pairs(
    gpus: int, nics: list[NicAddress], attempt: Callable[[int, NicAddress], PathChoice]
) -> list[PartFinding]:
    """Try every GPU with every NIC. What goes wrong is found, too: a doctor does not fall ill."""
    found = []
    for gpu in range(gpus):
        for nic in nics:
            try:
                found.append(attempt(gpu, nic).finding())
            except Exception as error:  # whatever a driver or a library says
                seen = f"cannot be tried: {type(error).__name__}: {error}"
                gives = "NICs read and write GPU buffers, with no copy through host memory"
                found.append(PartFinding(f"GPU {gpu} by {nic.device}", False, seen, gives, "what the message asks for"))
    return found


def _count() -> int:
    try:
        return gpu_count()
    except PathRefusedError:
        return 0


def _try(gpu: int, address: NicAddress) -> PathChoice:
    from optcc.runtime.devices.cuda import Gpu
    from optcc.runtime.verbs.gpu_nic import LoopNic

    with LoopNic(address) as nic:
        return choose(Gpu(gpu), nic)
