"""The GPUs of NCCL's and RCCL's XML, and what joins them: NVLink, xGMI."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from lxml import etree

from optcc.discover.nccl_document import at, number
from optcc.discover.topology import Assumed
from optcc.errors import InputError

MAX_DEVICES = 1024
"""GPUs, and NICs, of one server; NCCL itself stops at 256 or 576, depending on its version."""

IN_YAML = "optcc topo ... -o FILE.yaml, and nvlink: in that file"

LOST_NVLINK = "has no NVLink or xGMI link, where other GPUs have: a fault; the others' rate is taken for all"

# Least compute capability -> GB/s of a link each way. NCCL's figures, src/graph/topo.h (SM60_NVLINK_BW and so on, and
# the order of the comparisons in ncclTopoNVLinkBw).
_NVLINK_RATE = ((100, "40.1"), (90, "20.6"), (87, "20"), (86, "12"), (70, "20"), (60, "18"), (0, "20"))
_CPU_CLASS = "0x068001"  # POWER9: NVLinks to the CPU do not join GPUs

# GB/s each way of one xGMI link: RCCL's figures, src/graph/topo.h (VEGA_XGMI_WIDTH and so on, ncclTopoXGMISpeed).
# Early dumps write the number alone: 906, 908, and 910 for gfx90a.
_XGMI_RATE = (("gfx90a", 36), ("910", 36), ("gfx94", 48), ("94", 48), ("gfx95", 48), ("gfx90", 24), ("90", 24))
_XGMI_OTHER = 24

_GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
"""PCI classes: VGA, 3D controller, other display (AMD), processing accelerator (AMD)."""


def gpus_of(scope: Sequence[etree._Element], path: str) -> list[etree._Element]:
    """The <gpu>s that take part (all, where no rank is given), in the order of dev."""
    found = [gpu for part in scope for gpu in part.iter("gpu")]
    check_device_count(found, path)
    ranked = [gpu for gpu in found if gpu.get("rank") is not None]
    return sorted(ranked or found, key=lambda gpu: number(gpu, "dev", path))


def bare_gpus(scope: Sequence[etree._Element]) -> list[etree._Element]:
    """The <pci>s that are GPUs by their class, of a file that was made for NCCL rather than by it."""
    return [pci for part in scope for pci in part.iter("pci") if (pci.get("class") or "")[:6] in _GPU_CLASSES]


def check_device_count(elements: Sequence[etree._Element], path: str) -> None:
    """Raise InputError for more than any server has."""
    if len(elements) > MAX_DEVICES:
        where = f"{path}:{elements[MAX_DEVICES].sourceline}"
        raise InputError(
            f"too many <{elements[0].tag}>", where=where, expected=f"at most {MAX_DEVICES}", got=len(elements)
        )


def link_rate(gpus: Sequence[etree._Element], path: str, assumed: Assumed) -> Fraction:
    """Bytes per second each way over all NVLinks or xGMI links of one GPU: of those that have any, the GPU with the
    least. 0 where none has any."""
    each = [_nvlink(gpu, path) + _xgmi(gpu, path, assumed) for gpu in gpus]
    rates = set(each) - {0}
    for gpu in (gpu for gpu, rate in zip(gpus, each, strict=True) if rates and not rate):
        assumed.add(f"{path}:{gpu.sourceline}: GPU{gpu.get('dev', '')[:9]}", LOST_NVLINK, IN_YAML)
    if len(rates) > 1:
        assumed.add(path, "GPUs differ in NVLink rate; the least is taken for all", IN_YAML)
    if any(gpu.find("xgmi") is not None for gpu in gpus):
        pairs = "xGMI joins GPUs in pairs, not through a switch; a GPU's links together count as its one port"
        assumed.add(path, pairs, IN_YAML)
    return min(rates, default=Fraction(0))


def _nvlink(gpu: etree._Element, path: str) -> Fraction:
    links = [link for link in gpu.iter("nvlink") if link.get("tclass") != _CPU_CLASS]
    count = sum(number(link, "count", path) for link in links)
    sm = number(gpu, "sm", path) if links else 0
    each = next(rate for least, rate in _NVLINK_RATE if sm >= least)
    return count * Fraction(each) * 10**9


def _xgmi(gpu: etree._Element, path: str, assumed: Assumed) -> Fraction:
    count = sum(number(link, "count", path) for link in gpu.iter("xgmi"))
    gcn = gpu.get("gcn", "")
    each = next((rate for start, rate in _XGMI_RATE if gcn.startswith(start)), None)
    if each is None and count:
        unknown = f"no xGMI rate is known for gcn {gcn[:40]!r}; RCCL's default, {_XGMI_OTHER} GB/s a link, is taken"
        assumed.add(at(gpu, path), unknown, IN_YAML)
    return Fraction(count * (each or _XGMI_OTHER) * 10**9)
