"""Grid files, and the same written as options, to a `SweepGrid`.

docs/sweeps.md describes the format, and a test reads its example.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from optcc.discover import load_topology
from optcc.discover.topology import Topology, located, measured_line
from optcc.discover.yaml_file import PREFIX, YamlDocument
from optcc.errors import InputError
from optcc.files.reading import beginning, read_file, shown
from optcc.schedule.baselines import BASELINES
from optcc.schedule.recipe import MAX_SEGMENTS
from optcc.simulation.simulator import Receivers
from optcc.sweep.failure_entry import FailuresEntry, read_failures
from optcc.sweep.failures import Named
from optcc.sweep.grid import GridTopology, SweepGrid
from optcc.sweep.typed import Texts, Where, check_apart, read_each, whole_number
from optcc.values.units import format_seconds, parse_seconds, parse_size

MARKER, VERSION = "optcc-sweep", "1"
MAX_FILE_BYTES = 2**20
NO_TIME = "0us"


class TopologyEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A topology with what `optcc.discover.load_topology` takes beside it."""

    topology: str
    servers: Texts | None = None
    nic_rate: str | None = None


class GridFile(msgspec.Struct, forbid_unknown_fields=True):
    """A grid as typed."""

    topologies: Annotated[list[str | TopologyEntry], msgspec.Meta(min_length=1)]
    sizes: Texts
    marker: str = msgspec.field(name=MARKER, default=VERSION)
    failures: Annotated[list[FailuresEntry], msgspec.Meta(min_length=1)] | None = None
    algorithms: Texts | None = None
    alpha: Texts | None = None
    per_chunk: Texts | None = None
    segments: Texts | None = None
    receivers: Receivers | None = None
    quantity: Literal["simulate", "bound"] = "simulate"
    ranks: Literal["server", "gpu"] = "server"
    seed: str = "0"


def read_grid(path: Path) -> SweepGrid:
    """The grid of a file. Raises InputError naming the file, line and field."""
    data = read_file(path, MAX_FILE_BYTES, what="grid", expected="a grid file")
    document = YamlDocument(data, shown(path), "grid")
    typed = document.decode(GridFile, marker=MARKER, version=VERSION, fields_at=_struct_at)
    return grid_of(typed, Where(document.where), path.parent)


def is_grid(source: str) -> bool:
    """Whether `source` is a file that begins like a grid, not a topology."""
    return re.search(rb"^(optcc-sweep|topologies)\s*:", beginning(source, 4096), re.MULTILINE) is not None


def grid_of(typed: GridFile, where: Where, folder: Path = Path()) -> SweepGrid:
    """`typed` with every text read. `where` says where and how a person wrote it.

    Raises InputError for what cannot be read.
    """
    topologies: list[GridTopology] = []
    places: list[str] = []
    notes: list[str] = []
    for i, entry in enumerate(typed.topologies):
        for topology, found in _topologies(entry, f"$.topologies[{i}]", where, folder, _costs_of_files(typed)):
            cluster = replace(topology.cluster, gpu_ranks=typed.ranks == "gpu")
            topologies.append(replace(topology, cluster=cluster))
            places.append(f"$.topologies[{i}]")
            notes += [note for note in found if note not in notes]
    check_apart(topologies, [t.name for t in topologies], places, where)
    if typed.ranks == "gpu":
        _check_nvlink(topologies, where)
    if typed.quantity == "bound" and typed.algorithms is not None:
        expected = where.field("quantity", "simulate")
        raise InputError("a bound has no algorithm", where=where("$.algorithms"), expected=expected)
    if typed.quantity == "bound" and typed.receivers is not None:
        expected = where.field("quantity", "simulate")
        raise InputError("a bound has no receivers", where=where("$.receivers"), expected=expected)
    known = {f"{s.name}/{nic.name}" for t in topologies for s in t.cluster.servers for nic in s.nics}
    entries = {f"$.failures[{i}]": entry for i, entry in enumerate(typed.failures or [])}
    failures = [read_failures(entry, at, where, known) for at, entry in entries.items()]
    check_apart(failures, [f"entry {i}" for i in range(len(failures))], [*entries], where)
    return SweepGrid(
        topologies=tuple(topologies),
        failures=tuple(failures) or (Named(()),),
        sizes=read_each(typed.sizes, "$.sizes", where, _size),
        algorithms=read_each(typed.algorithms or ["optcc", "ring"], "$.algorithms", where, _algorithm)
        if typed.quantity == "simulate"
        else (None,),
        alpha_s=read_each(typed.alpha or NO_TIME, "$.alpha", where, parse_seconds),
        per_chunk_s=read_each(typed.per_chunk or NO_TIME, "$.per_chunk", where, parse_seconds),
        segments=(None,) if typed.segments is None else read_each(typed.segments, "$.segments", where, _segments),
        seed=whole_number(typed.seed, where("$.seed"), least=0, most=2**63 - 1),
        notes=tuple(notes),
        receivers=typed.receivers,
    )


def _struct_at(place: str) -> type[msgspec.Struct]:
    if place.startswith("$.failures["):
        return FailuresEntry
    return TopologyEntry if place.startswith("$.topologies[") else GridFile


def _costs_of_files(typed: GridFile) -> list[str]:
    """The costs that are taken from topologies that have measured them: those that `typed` does not name. Bounds have
    none."""
    return [name for name in ("alpha", "per_chunk") if typed.quantity == "simulate" and getattr(typed, name) is None]


def _topologies(
    entry: str | TopologyEntry, at: str, where: Where, folder: Path, costs: list[str]
) -> Iterator[tuple[GridTopology, tuple[str, ...]]]:
    """The topologies of `entry` with those of `costs` that their files have measured, and what to say of each."""
    typed = TopologyEntry(entry) if isinstance(entry, str) else entry
    source = typed.topology if typed.topology.startswith(PREFIX) else str(folder / typed.topology)
    counts: list[int | None] = [None]
    if typed.servers is not None:
        counts = [*read_each(typed.servers, f"{at}.servers", where, lambda text, at: whole_number(text, at, 1, 65536))]
    for servers in counts:
        try:
            with located(where(at)):
                found = load_topology(source, servers=servers, nic_rate=typed.nic_rate)
        except InputError as error:
            hint = error.hint and _ways_out(error.hint, source, where)
            raise InputError(error.what, where=error.where, expected=error.expected, got=error.got, hint=hint) from None
        assumed = (
            replace(a, what=_ways_out(a.what, source, where), fix=_ways_out(a.fix, source, where))
            for a in found.assumed
        )
        seen, said = _measured(found, source, where, costs)
        yield GridTopology(typed.topology, found.cluster, **seen), (*map(str, assumed), *said)


def _measured(found: Topology, source: str, where: Where, costs: list[str]) -> tuple[dict[str, Fraction], list[str]]:
    """Those of `costs` that the file has measured, by field of `GridTopology`, and what to say of its measurements."""
    if found.measured is None:
        return {}, []
    seen, said = {}, [f"{source}: {measured_line(found.cluster, found.measured)}"]
    for name in costs:
        value: Fraction | None = getattr(found.measured, f"{name}_s")
        if value:
            seen[f"{name}_s"] = value
            shown = where.field(name, format_seconds(value))
            said.append(f"{source}: {shown} as measured; {where.field(name, NO_TIME)} does without")
    return seen, said


def _ways_out(text: str, source: str, where: Where) -> str:
    """`text` about the topology `source`, whose readers speak of options of `optcc topo`, for people who sweep.

    A sweep has two of these options, in a grid file as fields; what the others do goes into a file.
    """
    text = text.replace(", --hosts node1,node2 named ones", "")
    for option, name in (("--servers", "servers"), ("--nic-rate", "nic_rate")):
        text = re.sub(rf"{option}(?= [A-Z0-9'*])", where.field(name), text).replace(option, where.named(name))
    if "--nics" in text:
        text = f"{text.rstrip('.')} (`optcc topo {source} --nics LIST -o FILE.yaml`, and FILE.yaml in the sweep)"
    return text


def _check_nvlink(topologies: list[GridTopology], where: Where) -> None:
    """Raise InputError for a topology that does not say how fast its GPUs reach each other: no row of it would have a
    result."""
    for topology in topologies:
        for server in topology.cluster.servers:
            if server.gpus > 1 and not server.nvlink_rate:
                expected = (
                    f"topologies with nvlink: in their YAML (nvlink= in a preset), or {where.field('ranks', 'server')}"
                )
                hint = "`optcc topo TOPOLOGY -o FILE.yaml` writes a YAML to add it to."
                got = f"none for {server.name} of {topology.name}"
                raise InputError("no NVLink rate", where=where("$.ranks"), expected=expected, got=got, hint=hint)


def _size(text: str, where: str) -> int:
    size = parse_size(text, where)
    if size < 1:
        raise InputError("nothing to reduce", where=where, expected="1 byte or more", got=text)
    return size


def _algorithm(text: str, where: str) -> str:
    names = ("optcc", *BASELINES)
    if text not in names:
        raise InputError("unknown algorithm", where=where, expected=f"one of {', '.join(names)}", got=text)
    return text


def _segments(text: str, where: str) -> int:
    return whole_number(text, where, 1, MAX_SEGMENTS)
