"""Topologies from where they are: NCCL's XML dumps, the project's YAML, presets; and failures from the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from optcc.discover.failures import apply_failures, parse_fail
from optcc.discover.nccl_xml import read_nccl_xml
from optcc.discover.preset import PREFIX, read_preset
from optcc.discover.topology import Topology
from optcc.discover.yaml_file import read_yaml
from optcc.errors import InputError
from optcc.units import parse_rate

__all__ = ["Topology", "apply_failures", "load_topology", "parse_fail"]

MAX_FILE_BYTES = 2 * 2**20
"""Real dumps are 10 to 100 kB, a YAML of two thousand different servers is 1 MB."""


def load_topology(source: str, *, servers: int | None = None, nic_rate: str | None = None) -> Topology:
    """The cluster that `source` describes, and notes on what was skipped or assumed.

    Parameters
    ----------
    source : path of an NCCL topology XML or of a YAML file, or a preset ``uniform:servers=8,nics=8,rate=400Gb/s``
    servers : make a cluster of this many copies of a one-server topology, named server0, server1, ...
    nic_rate : such as ``400Gb/s``, for NICs whose rate `source` does not give

    Raises InputError, which names the line or field, for anything else.
    """
    rate = None if nic_rate is None else parse_rate(nic_rate, "--nic-rate")
    if rate == 0:
        raise InputError("a rate of nothing", where="--nic-rate", expected="more than 0", got=nic_rate)
    if source.startswith(PREFIX):
        topology = read_preset(source, rate)
    else:
        data = _read(source)
        is_xml = Path(source).suffix.lower() == ".xml" or data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"<"
        topology = read_nccl_xml(data, source, rate) if is_xml else read_yaml(data, source, rate)
    if servers is not None:
        return replace(topology, cluster=topology.cluster.replicate(servers))
    if len(topology.cluster.servers) == 1:
        return replace(topology, notes=(*topology.notes, f"{source}: one server; --servers N makes N copies of it."))
    return topology


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(
            "cannot be read",
            where=path,
            expected="an NCCL topology XML, a YAML file or a preset",
            got=getattr(error, "strerror", None) or str(error),
            hint=f"A preset looks like {PREFIX}servers=8,nics=8,rate=400Gb/s.",
        ) from None
    if len(data) > MAX_FILE_BYTES:
        raise InputError("too large for a topology", where=path, expected=f"at most {MAX_FILE_BYTES} bytes", got="more")
    return data
