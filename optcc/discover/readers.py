"""The kinds of text that topologies come in: how each is told by its content, and what reads it.

A new kind is a file and a line in `TEXTS` or `PARTS`. A text of `TEXTS` is a whole cluster, most often of one server;
one of `PARTS` tells NICs or GPUs of one server alone, and several may be given for it (`optcc.discover.parts`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from optcc.discover.amd_gpus import looks_like_amd, read_amd
from optcc.discover.given import Given, apply_given
from optcc.discover.nccl_log_hosts import looks_like_nccl_log, read_nccl_log
from optcc.discover.nccl_xml import nccl_servers
from optcc.discover.parts import TopologyPart, server_of
from optcc.discover.port_lists import (
    looks_like_ibdev2netdev,
    looks_like_ibstat,
    looks_like_rdma_link,
    read_ibdev2netdev,
    read_ibstat,
    read_rdma_link,
)
from optcc.discover.port_tools import (
    looks_like_devinfo,
    looks_like_ethtool,
    looks_like_iblinkinfo,
    looks_like_ibstatus,
    looks_like_mlxlink,
    looks_like_rdma_dev,
    looks_like_rdma_link_text,
    read_devinfo,
    read_ethtool,
    read_iblinkinfo,
    read_ibstatus,
    read_mlxlink,
    read_rdma_dev,
    read_rdma_link_text,
)
from optcc.discover.rails import Clues
from optcc.discover.smi_text import looks_like_smi, smi_server
from optcc.discover.topology import Assumed, Topology, describe, measured_line
from optcc.discover.yaml_file import read_yaml
from optcc.values.cluster import Cluster

Raw = Callable[[Given], tuple[Topology, Clues]]
"""What a source gives before NICs without a rail get one, which takes all servers of a cluster."""


@dataclass(frozen=True)
class TextReader:
    """`fits` : whether a text, of a file of this name, is of this kind; `read` : (text, its bytes, path, given);
    `rates` : whether it tells the rates of NICs."""

    name: str
    fits: Callable[[str, str], bool]
    read: Callable[[str, bytes, str, Given], tuple[Topology, Clues]]
    rates: bool = True


@dataclass(frozen=True)
class PartReader:
    """`fits` : whether a text is of this kind; `read` : (text, path) -> host -> part, the empty name for no host."""

    name: str
    fits: Callable[[str], bool]
    read: Callable[[str, str], Mapping[str, TopologyPart]]


def _one(read: Callable[[str, str], TopologyPart]) -> Callable[[str, str], Mapping[str, TopologyPart]]:
    return lambda text, path: {"": read(text, path)}


def _yaml(text: str, data: bytes, path: str, given: Given) -> tuple[Topology, Clues]:
    return corrected(read_yaml(data, path, given), path, given), {}


PARTS = (
    PartReader("ibstat", looks_like_ibstat, _one(read_ibstat)),
    PartReader("ibdev2netdev", looks_like_ibdev2netdev, _one(read_ibdev2netdev)),
    PartReader("rdma link -j", looks_like_rdma_link, _one(read_rdma_link)),
    PartReader("rdma link", looks_like_rdma_link_text, _one(read_rdma_link_text)),
    PartReader("rdma dev", looks_like_rdma_dev, _one(read_rdma_dev)),
    PartReader("ibstatus", looks_like_ibstatus, _one(read_ibstatus)),
    PartReader("ibv_devinfo", looks_like_devinfo, _one(read_devinfo)),
    PartReader("ethtool", looks_like_ethtool, _one(read_ethtool)),
    PartReader("mlxlink", looks_like_mlxlink, _one(read_mlxlink)),
    PartReader("iblinkinfo", looks_like_iblinkinfo, read_iblinkinfo),
    PartReader("rocm-smi, amd-smi", looks_like_amd, _one(read_amd)),
    PartReader("NCCL's log", looks_like_nccl_log, read_nccl_log),
)
TEXTS = (
    TextReader(
        "NCCL's XML",
        lambda text, path: (
            text.lstrip()[:1] == "<" or (Path(path).suffix.lower() == ".xml" and "\noptcc:" not in f"\n{text}")
        ),
        lambda text, data, path, given: nccl_servers(data, path, given),
    ),
    TextReader(
        "nvidia-smi topo -m",
        lambda text, path: looks_like_smi(text),
        lambda text, data, path, given: smi_server(text, path, given),
        rates=False,
    ),
)
"""What fits none of either is YAML, whose reader has the message for anything else."""


def part_reader(text: str) -> PartReader | None:
    """The one that a text is for, where it is a part."""
    return next((reader for reader in PARTS if reader.fits(text)), None)


def text_reader(text: str, path: str, documents_only: bool) -> TextReader:
    """The one for a text that is no part. documents_only : XML and YAML alone."""
    known = TEXTS[:1] if documents_only else TEXTS
    return next((reader for reader in known if reader.fits(text, path)), TextReader("YAML", lambda *_: True, _yaml))


def of_parts(name: str, parts: Sequence[TopologyPart], given: Given) -> tuple[Topology, Clues]:
    """The one server of this name with its parts."""
    assumed = Assumed()
    server, clues = server_of(parts, name, given, assumed)
    cluster = Cluster((server,))
    read = [f"{part.where}: {part.read}" for part in parts]
    return Topology(cluster, assumed.all(), (*read, *describe(cluster))), clues


def corrected(topology: Topology, source: str, given: Given) -> Topology:
    """A preset, or YAML, with the options applied, and described."""
    cluster = apply_given(topology.cluster, given)
    lines = (f"{source}: optcc's own", *describe(cluster), *topology.read)
    if topology.measured is not None:
        lines = (*lines, measured_line(cluster, topology.measured))
    return replace(topology, cluster=cluster, read=lines)
