"""What this machine has: libraries, GPUs, RDMA devices with their rates, and what each missing part would give."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Finding:
    """One part: is it here, what was seen, what it gives, and how to get it when it is not here."""

    part: str
    present: bool
    seen: str
    gives: str
    get: str = ""

    def as_json(self) -> dict[str, object]:
        """The finding as JSON values."""
        return asdict(self)


_LIBRARIES = (
    ("numpy", "schedules and host buffers; the runtime's only need", "pip install numpy"),
    ("scipy", "sparse matrices under the convex programs", "pip install scipy"),
    ("sympy", "symbolic bounds", "pip install sympy"),
    ("cvxpy", "convex programs for splits", "pip install cvxpy"),
    ("numba", "the compiled simulator", "pip install numba"),
    ("matplotlib", "timelines and figures", "pip install matplotlib"),
    ("cupy", "schedules on GPU buffers", "install the extra `gpu` (cupy-cuda13x; cupy-cuda12x for CUDA 12)"),
    ("pyverbs", "schedules over RDMA verbs", "apt install python3-pyverbs, or the extra `rdma`"),
)


def examine(root: Path = Path("/")) -> list[Finding]:
    """Look at libraries and at devices under `root` (another root is for tests). Imports none of them."""
    return [*map(_library, *zip(*_LIBRARIES, strict=True)), _gpus(root), *_rdma(root)]


def _library(name: str, gives: str, get: str) -> Finding:
    if importlib.util.find_spec(name) is None:
        return Finding(name, False, "not installed", gives, get)
    return Finding(name, True, _version(name), gives)


def _version(name: str) -> str:
    for distribution in importlib.metadata.packages_distributions().get(name, [name]):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "version unknown"


def _gpus(root: Path) -> Finding:
    gives = "buffers in device memory"
    names = []
    for information in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        model = [
            line.partition(":")[2].strip() for line in _read(information).splitlines() if line.startswith("Model:")
        ]
        names.append(model[0] if model else information.parent.name)
    if names:
        return Finding("GPUs", True, f"{len(names)}: {', '.join(sorted(set(names)))}", gives)
    return Finding("GPUs", False, "no NVIDIA driver's GPU found", gives, "a machine with an NVIDIA GPU and driver")


def _rdma(root: Path) -> list[Finding]:
    gives = "real NICs to run schedules on"
    found = []
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        # sysfs writes "4: ACTIVE" and "400 Gb/sec (4X NDR)".
        state, rate = _read(port / "state").partition(":")[2].strip(), _read(port / "rate")
        name = f"RDMA {port.parent.parent.name} port {port.name}"
        up = state == "ACTIVE"
        found.append(Finding(name, up, f"{state or 'state unknown'}, {rate or 'rate unknown'}", gives))
    return found or [Finding("RDMA devices", False, "none", gives, "an RDMA NIC, or soft-RoCE (rdma_rxe)")]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
