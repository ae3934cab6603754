"""`optcc doctor`: which libraries and devices are here, and what each missing one would give."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import click
from rich.table import Table

from optcc.cli.options import emit, json_option
from optcc.errors import InputError
from optcc.machine import native
from optcc.machine.findings import PartFinding, package_version
from optcc.machine.rdma import LIBRARY, RdmaPort, can_load, own_sysfs, rdma_ports
from optcc.machine.sysfs import Folder
from optcc.reports.console import show
from optcc.values.units import format_rate

_LIBRARIES = (
    ("numpy", "schedules and host buffers; the runtime's only need", "pip install numpy"),
    ("scipy", "sparse matrices under the convex programs", "pip install scipy"),
    ("sympy", "symbolic bounds", "pip install sympy"),
    ("cvxpy", "convex programs for splits", "pip install cvxpy"),
    ("matplotlib", "timelines and figures", "pip install matplotlib"),
    ("cupy", "schedules on GPU buffers", "install the extra `gpu` (cupy-cuda13x; cupy-cuda12x for CUDA 12)"),
    ("torch", "optcc.pytorch: plans under DDP", "make torch (for processors), or the extra `torch` (with CUDA, 6 GB)"),
    ("starlette", "optcc serve", "pip install starlette uvicorn, the extra `serve`"),
    ("uvicorn", "optcc serve", "pip install starlette uvicorn, the extra `serve`"),
    ("ClusterShell", "Slurm's lists of hosts, --hosts node[1-4]", "pip install ClusterShell, the extra `slurm`"),
)


def examine(root: Path | None = None) -> list[PartFinding]:
    """Look at libraries and at devices under `root`, or of this process. Imports no package."""
    root = root or own_sysfs().parent
    libraries = [*map(_library, *zip(*_LIBRARIES, strict=True)), _native(), _libibverbs()]
    return [*libraries, _gpus(root), *_rdma(root), _topology(root / "sys")]


def _topology(sysfs: Path) -> PartFinding:
    """What `optcc topo` reads from sysfs, with what it assumes; where it cannot, what to pass."""
    from optcc.discover.given import Given
    from optcc.discover.sysfs_tree import read_sysfs

    part, gives = "topology of sysfs", f"optcc topo {sysfs} -o FILE.yaml"
    try:
        found = read_sysfs(str(sysfs), Given())
    except InputError as error:
        return PartFinding(part, False, error.what, gives, error.hint or str(error))
    assumed = [note.removeprefix(f"{sysfs}: ") for note in found.notes]
    return PartFinding(part, True, "; ".join([*found.read[1:], *assumed]), gives)


def _library(name: str, gives: str, get: str) -> PartFinding:
    if importlib.util.find_spec(name) is None:
        return PartFinding(name, False, "not installed", gives, get)
    return PartFinding(name, True, package_version(name) or "version unknown", gives)


def _native() -> PartFinding:
    part, gives = "liboptcc", "planning, simulating, and collectives in host memory"
    try:
        native.library()
    except InputError as error:
        return PartFinding(part, False, f"{error.what}, {error.got}", gives, error.hint or "")
    return PartFinding(part, True, str(native.LIBRARY), gives)


def _libibverbs() -> PartFinding:
    gives, get = "schedules over RDMA verbs", "apt install libibverbs1 ibverbs-providers"
    here = can_load()
    return PartFinding("libibverbs", here, LIBRARY if here else "not installed", gives, "" if here else get)


def _gpus(root: Path) -> PartFinding:
    gives = "buffers in device memory"
    names = []
    proc = Folder(root / "proc/driver/nvidia/gpus")
    for gpu in proc.names(""):
        lines = proc.text(f"{gpu}/information").splitlines()
        model = [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
        names.append(model[0] if model else gpu)
    if names:
        return PartFinding("GPUs", True, f"{len(names)}: {', '.join(sorted(set(names)))}", gives)
    return PartFinding("GPUs", False, "no NVIDIA driver's GPU found", gives, "a machine with an NVIDIA GPU and driver")


def _rdma(root: Path) -> list[PartFinding]:
    gives = "real NICs to run schedules on"
    found = []
    for port in rdma_ports(Folder(root / "sys")):
        usable = port.active and port.address() is not None
        get = "" if usable else "a link" if not port.active else "an address on its interface, for a RoCE v2 GID"
        found.append(PartFinding(f"RDMA {port.device} port {port.port}", usable, _seen(port), gives, get))
    return found or [PartFinding("RDMA devices", False, "none", gives, "an RDMA NIC, or soft-RoCE (rdma_rxe)")]


def _seen(port: RdmaPort) -> str:
    """`ACTIVE, 400Gb/s, Ethernet, ens1f0, GID 3 (10.0.0.1), NUMA node 0`: what there is of it."""
    if port.link == "InfiniBand":
        spoken = f"LID {port.lid}"
    else:
        spoken = "no RoCE v2 GID" if port.gid is None else f"GID {port.gid.index} ({port.gid.ipv4 or port.gid.address})"
    rate = "rate unknown" if port.rate is None else format_rate(port.rate)
    parts = [port.state or "state unknown", rate, port.link, port.interface, spoken]
    parts += [f"NUMA node {port.numa}" if port.numa >= 0 else "", "played" if port.played else ""]
    return ", ".join(part for part in parts if part)


def print_doctor(findings: list[PartFinding]) -> None:
    """A table of parts, and below it how to get what is missing."""
    table = Table(box=None, pad_edge=False)
    for column in ("part", "here", "seen", "gives"):
        table.add_column(column)
    for f in findings:
        table.add_row(f.part, "yes" if f.present else "no", f.seen, f.gives)
    show(table)
    for f in findings:
        if f.get and not f.present:
            show(f"for {f.part}: {f.get}")


_GIVES = "optcc.pytorch: plans over torch.distributed, a hook for DDP"
_GET = "make torch (for processors), or the extra `torch` (with CUDA, 6 GB)"
_BACKENDS = (
    ("gloo", "Gloo", "torch.distributed between processors", "a build of torch with Gloo: make torch"),
    ("nccl", "NCCL", "torch.distributed between GPUs", "a build of torch with CUDA or ROCm (pip install torch)"),
)


def examine_torch() -> list[PartFinding]:
    """torch and its version; where it loads, Gloo and NCCL too, as far as this build has them."""
    if importlib.util.find_spec("torch") is None:
        return [PartFinding("torch", False, "not installed", _GIVES, _GET)]
    try:
        torch = importlib.import_module("torch")
        distributed = importlib.import_module("torch.distributed")
    except Exception as error:  # a library that it misses, or a build for other processors
        first = (str(error).splitlines() or [""])[0]
        return [
            PartFinding("torch", False, f"cannot be loaded: {type(error).__name__}: {first}", _GIVES, "install it anew")
        ]
    found = [PartFinding("torch", True, str(torch.__version__), _GIVES)]
    for name, title, gives, get in _BACKENDS:
        here = distributed.is_available() and getattr(distributed, f"is_{name}_available")()
        found.append(PartFinding(f"torch {title}", here, "in this build" if here else "not in this build", gives, get))
    return found


@click.command()
@click.option(
    "--sysfs", type=click.Path(path_type=Path, exists=True, file_okay=False), metavar="DIR",
    help="Devices of a copy of another machine: a directory with its sys/.",
)  # fmt: skip
@json_option
def doctor(sysfs: Path | None, as_json: bool) -> None:
    """What of numpy, torch, cupy, libibverbs, devices and rates is here, and what each missing part would give."""
    from optcc.reports.console import working
    from optcc.runtime.devices.gpu_memory import examine_gpu_memory

    with working("looking at libraries and devices"):
        here = [] if sysfs else [*examine_torch(), *examine_gpu_memory()]
        findings = [*examine(sysfs), *here]
    emit(as_json, {"parts": [finding.as_json() for finding in findings]}, lambda: print_doctor(findings))
