"""Topologies from where they are: NCCL's and RCCL's XML, nvidia-smi's matrix, sysfs, the project's YAML, presets.

Every reader says what it has read, what it has assumed, and what to pass to correct that (`Topology`).

Imported by: cli, communicator, diagnose, serve, study.
Imports: files, machine, simulation, values.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from optcc.discover.given import Given, apply_failures, expand_hosts, parse_fail
from optcc.discover.topology import Assumption, Measured, Topology
from optcc.discover.yaml_file import PREFIX, corrected, read_preset
from optcc.errors import InputError
from optcc.files.bundled import PREFIX as EXAMPLE
from optcc.files.bundled import located
from optcc.files.reading import ZIP, may_be_tree, read_file, shown
from optcc.values.cluster import Cluster

__all__ = ["Assumption", "Measured", "Topology", "apply_failures", "load_topology", "parse_fail"]

MAX_FILE_BYTES = 2 * 2**20
"""Real dumps are 10 to 100 kB, a YAML of two thousand different servers is 1 MB."""
MAX_LOG_BYTES = 2**26
"""Of an NCCL log, whose first lines tell the NICs: INFO of a thousand ranks' start has some 50 MB."""
MAX_BYTES = 2**28
"""Of all sources together: a thousand dumps of the largest size."""


def load_topology(
    source: str | Path | Sequence[str | Path],
    *,
    servers: int | None = None,
    nic_rate: str | None = None,
    nics: str | None = None,
    hosts: str | None = None,
    documents_only: bool = False,
) -> Topology:
    """The cluster that `source` describes, with what was read and assumed.

    Parameters
    ----------
    source : a path, a preset ``uniform:servers=8,nics=8,rate=400Gb/s``, or ``example:NAME`` (`optcc example` lists
        them). A path leads to an NCCL or RCCL topology XML, NCCL's log, nvidia-smi's matrix, or a YAML file. A copy of
        sysfs is a directory or a tarball; ``/sys`` is this machine's. It may also be output of ibstat, ibdev2netdev,
        ``rdma link -j``, rocm-smi or amd-smi. ``-`` is standard input, for all but a copy of sysfs. A folder of such
        files, a pattern such as ``dumps/*.xml``, or several sources are one cluster, one server each. ``node1=FILE``
        names its server; two files of one name are parts of it, such as NICs from ibstat and GPUs from rocm-smi
    servers : make a cluster of this many copies of a one-server topology, named server0, server1, ...
    nic_rate : such as ``400Gb/s``, for NICs whose rate `source` does not give; ``mlx5_8=25Gb/s`` for NICs of that
        name, whatever it gives; several with commas between them
    nics : the NICs that count, ``mlx5_[0-7]``, or ``^mlx5_8,mlx5_9`` for all but these; the reader's rule otherwise
    hosts : the servers' names, as Slurm lists them: ``node[001-004,007]``; a one-server topology is copied for each
    documents_only : presets, XML and YAML alone, one file, where what is read comes from somebody else; nothing is
        unpacked

    Raises InputError, which names the line or field, for anything else.
    """
    sources = [_as_text(one) for one in (source if isinstance(source, list | tuple) else [source])]
    if not sources:
        raise InputError("no topology", where="source", expected="a path, as str or Path", got="none")
    for name, value in (("nic_rate", nic_rate), ("nics", nics), ("hosts", hosts)):
        if not (value is None or isinstance(value, str)):
            raise InputError("not text", where=name, expected="a str, or None", got=type(value).__name__)
    given = Given.parse(nic_rate, nics)
    topology = _read_any(sources, given, documents_only)
    given.check_used(nic.name for server in topology.cluster.servers for nic in server.nics)
    if servers is not None and hosts is not None:
        raise InputError("one or the other", where="--servers, --hosts", expected="not both")
    if servers is not None:
        return replace(topology, cluster=topology.cluster.replicate(servers))
    if hosts is not None:
        cluster = _on_hosts(topology.cluster, expand_hosts(hosts))
        return replace(topology, cluster=cluster, read=(*topology.read, f"--hosts: {len(cluster.servers)} servers"))
    if len(topology.cluster.servers) == 1:
        alone = Assumption(
            shown(sources[0]), "one server", "--servers N makes N copies of it, --hosts node1,node2 named ones"
        )
        return replace(topology, assumed=(*topology.assumed, alone))
    return topology


def _as_text(source: object) -> str:
    if isinstance(source, str | os.PathLike) and isinstance(text := os.fspath(source), str):
        return text
    raise InputError("no topology", where="source", expected="a path, as str or Path", got=type(source).__name__)


def _read_any(texts: list[str], given: Given, documents_only: bool) -> Topology:
    if len(texts) == 1 and texts[0].startswith(PREFIX):
        return corrected(read_preset(texts[0], given.nic_rate), texts[0], given)
    # The other readers' patterns take longer to compile than a preset's command runs.
    from optcc.discover.pasted import as_utf8
    from optcc.discover.rails import on_rails
    from optcc.discover.several import Source, Sources, sources_of
    from optcc.discover.sysfs_tree import is_sysfs

    sources, nbytes = Sources(), 0
    for one in [Source(text) for text in texts] if documents_only else sources_of(texts):
        if one.path.startswith(PREFIX):
            raise InputError("a preset among several sources", where=one.path, expected="files of servers")
        if not documents_only and may_be_tree(one.path) and is_sysfs(one.path):
            sources.add_tree(one)
            continue
        data = _read(located(one.path) if one.path.startswith(EXAMPLE) else one.path, documents_only)
        nbytes += len(data)
        if nbytes > MAX_BYTES:
            raise InputError("too much for a topology", where=shown(one.path), expected=f"{MAX_BYTES} bytes in all")
        add = sources.add_document if documents_only else sources.add_text
        add(replace(one, path=shown(one.path)), as_utf8(data))
    return on_rails(sources.raw, given)


def _on_hosts(cluster: Cluster, names: list[str]) -> Cluster:
    """The servers by these names; one server is copied, several must be as many as the names."""
    if len(cluster.servers) == 1:
        cluster = cluster.replicate(len(names))
    if len(cluster.servers) != len(names):
        raise InputError(
            "another number of servers",
            where="--hosts",
            expected=f"{len(cluster.servers)} names, as many as the topology has servers",
            got=len(names),
        )
    pristine = None if cluster.pristine is None else _on_hosts(cluster.pristine, names)
    servers = tuple(replace(s, name=n) for s, n in zip(cluster.servers, names, strict=True))
    return replace(cluster, servers=servers, pristine=pristine)


def _read(path: str, documents_only: bool) -> bytes:
    most = MAX_FILE_BYTES if documents_only else MAX_LOG_BYTES
    data = read_file(
        path,
        most,
        what="topology",
        expected="an NCCL topology XML, a YAML file or a preset",
        hint=f"A preset looks like {PREFIX}servers=8,nics=8,rate=400Gb/s.",
    )
    if data.startswith(ZIP):
        hint = "Give the topology that it was made for."
        raise InputError("not a topology", where=shown(path), expected="text", got="a plan, or another zip", hint=hint)
    if data.startswith(b"\x1f\x8b"):
        try:
            data = zlib.decompressobj(wbits=31).decompress(data, most + 1)  # no more, whatever it unfolds to
        except zlib.error as error:
            raise InputError("gzip that cannot be read", where=shown(path), got=str(error)) from None
    if b" NCCL INFO " not in data[:MAX_FILE_BYTES]:
        most = MAX_FILE_BYTES
    if len(data) > most:
        raise InputError("too large for a topology", where=shown(path), expected=f"at most {most} bytes", got="more")
    return data
