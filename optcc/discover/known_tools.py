"""Texts that people give, but that are no topology, or no evidence: by what tool they are, and the way out."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SYSFS = "Give a copy of the server's sysfs, or what ibstat prints."
_SYSFS_EVIDENCE = "Give SERVER=DIR with a copy of the server's sysfs, or what ibstat or perfquery prints."
_PAIRS = "Give what sendrecv_perf of nccl-tests prints, or run optcc calibrate."


@dataclass(frozen=True)
class KnownTool:
    """How a tool's output is told, and what to give instead of it: as a topology, as evidence."""

    name: str
    looks: re.Pattern[str]
    topology: str = _SYSFS
    evidence: str = _SYSFS_EVIDENCE

    @classmethod
    def of(cls, name: str, looks: str, topology: str = _SYSFS, evidence: str = _SYSFS_EVIDENCE) -> KnownTool:
        return cls(name, re.compile(looks, re.M), topology, evidence)


_TOOLS = (
    KnownTool.of("perfquery's counters", r"[Pp]ort (?:extended )?counters: Lid|^PortSelect:\.{3}"),
    KnownTool.of("ethtool -S's counters", r"^NIC statistics:"),
    KnownTool.of("mlxlink's output", r"^Operational Info"),
    KnownTool.of("ibqueryerrors' output", r"^Errors for |GUID 0x[0-9a-f]+ port (?:ALL|\d+):"),
    KnownTool.of("ibdiagnet's output", r"ibdiagnet|^-[IWE]- "),
    KnownTool.of("ibnetdiscover's output", r"^(?:Ca|Switch)\s+\d+ \"[HS]-[0-9a-f]+\""),
    KnownTool.of("ibportstate's output", r"^LinkWidthActive:\.{3}"),
    KnownTool.of("ibv_devices' list", r"^\s+device\s+node GUID\s*$"),
    KnownTool.of("show_gids' table", r"^DEV\s+PORT\s+INDEX\s+GID"),
    KnownTool.of("ip link's output", r"^(?:\d{1,4}: )?[\w.@-]{1,32}: <[A-Z_,-]+> mtu "),
    KnownTool.of("lspci's list", r"^(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] [A-Z]\w+.*: "),
    KnownTool.of("lstopo's picture", r"^Machine \(\d+\w+ total"),
    KnownTool.of("perftest's output", r"RDMA_\w+ BW Test|Send BW Test|#bytes\s+#iterations", evidence=_PAIRS),
    KnownTool.of(
        "NVIDIA's list of GPUs", r"^\|\s*NVIDIA-SMI|^GPU \d{1,2}: ", "Give what nvidia-smi topo -m prints, with NICs."
    ),
    KnownTool.of(
        "nvidia-smi's matrix", r"^\s*\S{0,8}GPU0\s", evidence="It is a topology: give it before the evidence."
    ),
    KnownTool.of(
        "nccl-tests' output",
        r"^#\s+Rank\s+\d+ |\"out_of_place\"",
        "It is evidence for optcc diagnose. As a topology give NCCL's log (NCCL_DEBUG=INFO), or NCCL_TOPO_DUMP_FILE.",
    ),
    KnownTool.of(
        "NCCL Inspector's output",
        r"\"coll_perf\"|^nccl_(?:bus_bandwidth_gbs|collective_exec_time_microseconds)\{",
        "It is evidence for optcc diagnose. As a topology give NCCL's log (NCCL_DEBUG=INFO), or NCCL_TOPO_DUMP_FILE.",
    ),
    KnownTool.of("RAS's report", r"^Job summary|\"missing_ranks\"", "It is evidence for optcc diagnose."),
    KnownTool.of(
        "NCCL's log without its NICs",
        r" NCCL (?:INFO|WARN) |NET/IB",
        "Log with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET from the start of the job.",
    ),
    KnownTool.of(
        "NCCL's XML", r"^\s*<(?:system|graphs|algo)\b", evidence="It is a topology: give it before the evidence."
    ),
    KnownTool.of("the kernel's log", r"\b(?:mlx[45]_core|mlx5_ib|bnxt_en|irdma) [0-9a-f]{4}:[0-9a-f]{2}:"),
)


def tool_of(text: str) -> KnownTool | None:
    """The tool that printed a text; None for one that is not known."""
    return next((tool for tool in _TOOLS if tool.looks.search(text)), None)
