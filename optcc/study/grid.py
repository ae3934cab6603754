"""Grid files, and the same written as options: axes, and the cells that they span.

docs/sweeps.md describes the format, and a test reads its example.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec

from optcc.discover import load_topology
from optcc.discover.given import fits_nic, parts_of
from optcc.discover.topology import Topology, located, measured_line
from optcc.discover.yaml_file import PREFIX, YamlDocument
from optcc.errors import InputError
from optcc.files.reading import beginning, read_file, shown
from optcc.schedule.baselines import BASELINES
from optcc.schedule.recipe import MAX_SEGMENTS
from optcc.simulation.simulator import Receivers, usual_receivers
from optcc.study.cells import STRIPES, SweepCell, SweepJob, fingerprint
from optcc.study.failures import Counted, FailureEntry, MonteCarlo, Named, Place, Renamed
from optcc.values.cluster import MAX_NICS, Cluster
from optcc.values.units import format_seconds, parse_fraction, parse_seconds, parse_share, parse_size

MARKER, VERSION = "optcc-sweep", "1"
MAX_FILE_BYTES = 2**20
NO_TIME = "0us"
MAX_CELLS = 10**6
PLACELESS = {"ring", "balance", "nccl-tree", "r2cc", "optcc-published"}
"""Algorithms that spread a transfer over a server's live NICs by their rates and order. On a flat fabric their `Routes`
are the same, except for names, whichever of equal NICs are dead. Hot repair goes by each NIC's place, and our own
families by its number (`optcc.schedule.nics`); the order of servers matters to all of them."""

Costs = tuple[tuple[Fraction, ...], tuple[Fraction, ...]]


@dataclass(frozen=True)
class GridTopology:
    """A cluster before failures, and its name in the table.

    alpha_s, per_chunk_s : what its file has measured, where the grid names none and the file some; seconds
    """

    name: str
    cluster: Cluster
    alpha_s: Fraction | None = None
    per_chunk_s: Fraction | None = None


@dataclass(frozen=True)
class SweepGrid:
    """The axes of a sweep. Times in seconds, sizes in bytes; `algorithms` is (None,) for bounds alone.

    notes : what was skipped or assumed in the topologies; receivers : as `optcc.simulate` takes it; best : of jobs
    """

    topologies: tuple[GridTopology, ...]
    failures: tuple[FailureEntry, ...]
    sizes: tuple[int, ...]
    algorithms: tuple[str | None, ...]
    alpha_s: tuple[Fraction, ...]
    per_chunk_s: tuple[Fraction, ...]
    segments: tuple[int | None, ...]
    seed: int
    notes: tuple[str, ...] = ()
    receivers: Receivers | None = None
    best: bool = False
    jitter: tuple[float, ...] = (0.0,)

    def clusters(self) -> dict[str, Cluster]:
        """Every topology's cluster by its fingerprint."""
        return {fingerprint(topology.cluster): topology.cluster for topology in self.topologies}

    @property
    def monte_carlo(self) -> bool:
        """Whether any failures are random moments."""
        return any(isinstance(entry, MonteCarlo) for entry in self.failures)

    @property
    def renamed(self) -> Renamed:
        """What of a random moment may be renamed without a difference to any row.

        Bounds go by the rates of servers, in whatever order. A baseline's depth, where it is looked for, goes by its
        own times; else it is our own plan's, which may depend on places.
        """
        if self.algorithms == (None,):
            return "servers"
        costs = [self._costs(topology) for topology in self.topologies]
        own_depth = self.segments == (None,) and all(all(alphas) or all(chunks) for alphas, chunks in costs)
        return "nics" if own_depth and PLACELESS.issuperset(self.algorithms) else "nothing"

    def cells(self) -> tuple[SweepCell, ...]:
        """The rows, in the order of the table: topologies, failures, sizes, alpha, per-chunk, jitter, segments,
        algorithms."""
        per_set = len(list(self._jobs("", (), (self.alpha_s, self.per_chunk_s))))
        rows = len(self.topologies) * sum(map(len, self.failures)) * per_set
        if rows > MAX_CELLS:
            raise InputError("too large a grid", where="grid", expected=f"at most {MAX_CELLS} rows", got=rows)
        return tuple(self._cells())

    def _cells(self) -> Iterator[SweepCell]:
        for topology in self.topologies:
            cluster_id = fingerprint(topology.cluster)
            receivers = self.receivers or usual_receivers(topology.cluster.uplinks)
            servers, ranks = len(topology.cluster.servers), len(topology.cluster.ranks)
            for entry, failures in enumerate(self.failures):
                for failed in failures.sets(topology.cluster, self.seed, self.renamed):
                    nics = tuple(f"{nic}={left}" for nic, left in failed.nics)
                    for job in self._jobs(cluster_id, nics, self._costs(topology), receivers):
                        yield SweepCell(
                            topology.name, servers, ranks, entry, failed.place, len(nics), failed.left, failed.draw,
                            self.seed, job, failed.impossible,
                        )  # fmt: skip

    def _costs(self, topology: GridTopology) -> Costs:
        """Every alpha and every per-chunk cost of `topology`: what it has measured is one value, as a default is."""
        alpha_s, per_chunk_s = topology.alpha_s, topology.per_chunk_s
        return (
            self.alpha_s if alpha_s is None else (alpha_s,),
            self.per_chunk_s if per_chunk_s is None else (per_chunk_s,),
        )

    def _jobs(
        self, cluster_id: str, failures: tuple[str, ...], costs: Costs, receivers: Receivers = STRIPES
    ) -> Iterator[SweepJob]:
        axes = product(self.sizes, *costs, self.jitter, self.segments, self.algorithms)
        for size, alpha_s, per_chunk_s, jitter, segments, algorithm in axes:
            kind, best = (receivers, self.best) if algorithm else (STRIPES, False)
            yield SweepJob(cluster_id, failures, size, alpha_s, per_chunk_s, segments, algorithm, kind, best, jitter)


T = TypeVar("T")
Texts = str | Annotated[list[str], msgspec.Meta(min_length=1)]
"""Where a list of values belongs, one value will do."""


@dataclass(frozen=True)
class Where:
    """Where and how a person wrote a grid, for what is said about it: in a file's fields, or as options.

    at : from a place such as ``$.sizes[0]`` to where it is found: file, line and place, or an option
    named : from a field such as ``nic_share`` to what it was typed as; between : what stands between that and a value
    """

    at: Callable[[str], str]
    named: Callable[[str], str] = str
    between: str = ": "

    def __call__(self, place: str) -> str:
        return self.at(place)

    def field(self, name: str, value: str = "") -> str:
        """``mttf: 2.7h`` or ``--mttf 2.7h``; without a value ``mttf:`` or ``--mttf``."""
        return f"{self.named(name)}{self.between}{value}".rstrip()

    def listed(self, names: Iterable[str]) -> str:
        """Several fields: ``nics, count`` or ``--fail, --fail-count``."""
        return ", ".join(map(self.named, names))


def read_each(texts: Texts, at: str, where: Where, parse: Callable[[str, str], T]) -> tuple[T, ...]:
    """`parse` (text, where) of every text at the place `at`. Raises InputError where two say the same."""
    if isinstance(texts, str):
        return (parse(texts, where(at)),)
    places = [f"{at}[{i}]" for i in range(len(texts))]
    values = [parse(text, where(place)) for text, place in zip(texts, places, strict=True)]
    check_apart(values, texts, places, where)
    return tuple(values)


def check_apart(values: Sequence[Hashable], texts: Sequence[str], places: Sequence[str], where: Where) -> None:
    """Raise InputError if one of `values` is there twice, however typed: its rows would be, too, and count twice in
    results from the table."""
    found: dict[Hashable, int] = {}
    for i, value in enumerate(values):
        if (first := found.setdefault(value, i)) < i:
            expected = f"each once ({texts[first]} stands before it)"
            raise InputError("the same twice", where=where(places[i]), expected=expected, got=texts[i][:80])


def whole_number(text: str, where: str, least: int, most: int) -> int:
    """A whole number from `least` to `most`. Raises InputError for anything else."""
    number = int(text) if re.fullmatch("[0-9]{1,19}", text) else -1
    if not least <= number <= most:
        raise InputError("not such a number", where=where, expected=f"a whole number, {least} to {most}", got=text[:40])
    return number


class TopologyEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A topology with what `optcc.discover.load_topology` takes beside it."""

    topology: str
    servers: Texts | None = None
    nic_rate: str | None = None


class FailuresEntry(msgspec.Struct, forbid_unknown_fields=True):
    """One way to fail: exactly one of `nics`, `count` and `monte_carlo`, and the fields that go with it."""

    nics: Texts | None = None
    count: Texts | None = None
    left: Texts | None = None
    place: Place | None = None
    draws: str | None = None
    monte_carlo: str | None = None
    mttf: str | None = None
    repair_time: str | None = None
    nic_share: str | None = None
    mttf_nics: str | None = None


class GridFile(msgspec.Struct, forbid_unknown_fields=True):
    """A grid as typed."""

    topologies: Annotated[list[str | TopologyEntry], msgspec.Meta(min_length=1)]
    sizes: Texts
    marker: str = msgspec.field(name=MARKER, default=VERSION)
    failures: Annotated[list[FailuresEntry], msgspec.Meta(min_length=1)] | None = None
    algorithms: Texts | None = None
    alpha: Texts | None = None
    per_chunk: Texts | None = None
    jitter: Texts | None = None
    segments: Texts | None = None
    receivers: Receivers | None = None
    baselines: Literal["usual", "best"] = "usual"
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
    if typed.quantity == "bound" and typed.jitter is not None:
        expected = where.field("quantity", "simulate")
        raise InputError("a bound has no jitter", where=where("$.jitter"), expected=expected)
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
        best=typed.baselines == "best",
        jitter=read_each(typed.jitter or "0", "$.jitter", where, _jitter),
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


def _jitter(text: str, where: str) -> float:
    return float(parse_fraction(text, where))


def _segments(text: str, where: str) -> int:
    return whole_number(text, where, 1, MAX_SEGMENTS)


def read_failures(entry: FailuresEntry, at: str, where: Where, known: set[str]) -> FailureEntry:
    """What `entry`, at the place `at`, says; `known` are the NICs of all topologies. Raises InputError."""
    kinds = {
        "nics": (),
        "count": ("left", "place", "draws"),
        "monte_carlo": ("mttf", "repair_time", "nic_share", "mttf_nics"),
    }
    given = {name for name in entry.__struct_fields__ if getattr(entry, name) is not None}
    chosen = given & kinds.keys()
    if len(chosen) != 1:
        got = " and ".join(map(where.named, sorted(chosen))) or f"only {where.listed(sorted(given))}"
        expected = f"one of {where.listed(kinds)}"
        raise InputError("not one way to fail", where=where(at), expected=expected, got=got if given else "none")
    kind = chosen.pop()
    for name in sorted(given - {kind, *kinds[kind]}):
        mine = where.named(kind)
        expected = f"beside {mine} only {where.listed(kinds[kind])}" if kinds[kind] else f"nothing beside {mine}"
        got = where.named(name)
        raise InputError("a field of another way to fail", where=where(f"{at}.{name}"), expected=expected, got=got)
    if entry.nics is not None:
        return Named(_named(entry.nics, f"{at}.nics", where, known))
    if entry.count is not None:
        return _counted(entry, at, where)
    return _monte_carlo(entry, at, where)


def _named(texts: Texts, at: str, where: Where, known: set[str]) -> tuple[tuple[str, Fraction], ...]:
    parts = tuple(part for parts in read_each(texts, at, where, _as_fail) for part in parts)
    names = [name for name, _ in parts]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise InputError("the same NIC twice", where=where(at), expected="each NIC once", got=name)
        if not any(fits_nic(name, nic) for nic in known):
            raise InputError("no such NIC in any topology", where=where(at), expected="SERVER/NIC of one", got=name)
    return parts


def _counted(entry: FailuresEntry, at: str, where: Where) -> Counted:
    assert entry.count is not None
    if entry.draws is not None and entry.place != "random":
        expected = f"{where.named('draws')} with {where.field('place', 'random')} only"
        raise InputError("nothing is drawn", where=where(f"{at}.draws"), expected=expected)
    counts = tuple(n for counts in read_each(entry.count, f"{at}.count", where, _range) for n in counts)
    twice = [n for n, times in Counter(counts).items() if times > 1]
    if twice:
        raise InputError("the same twice", where=where(f"{at}.count"), expected="each number once", got=twice[0])
    return Counted(
        counts=counts,
        lefts=read_each("0" if entry.left is None else entry.left, f"{at}.left", where, _left),
        place=entry.place or "one-server",
        draws=1 if entry.draws is None else whole_number(entry.draws, where(f"{at}.draws"), 1, MAX_CELLS),
    )


def _monte_carlo(entry: FailuresEntry, at: str, where: Where) -> MonteCarlo:
    assert entry.monte_carlo is not None
    times: list[Fraction] = []
    for name, text in (("mttf", entry.mttf), ("repair_time", entry.repair_time)):
        if text is None:
            hint = f"For example {where.field(name, '2.7h' if name == 'mttf' else '24h')}."
            what = "no time between failures" if name == "mttf" else "no time of repairs"
            raise InputError(what, where=where(f"{at}.monte_carlo"), expected=where.field(name), hint=hint)
        times.append(parse_seconds(text, where(f"{at}.{name}")))
    if not times[0]:
        raise InputError("no time between failures", where=where(f"{at}.mttf"), expected="above 0", got=entry.mttf)
    share = Fraction(1) if entry.nic_share is None else parse_share(entry.nic_share, where(f"{at}.nic_share"))
    nics = entry.mttf_nics
    return MonteCarlo(
        draws=whole_number(entry.monte_carlo, where(f"{at}.monte_carlo"), 1, MAX_CELLS),
        mttf_s=times[0],
        repair_s=times[1],
        nic_share=share,
        mttf_nics=None if nics is None else whole_number(nics, where(f"{at}.mttf_nics"), 1, 10**9),
    )


def _as_fail(text: str, where: str) -> tuple[tuple[str, Fraction], ...]:
    try:
        return parts_of(text)
    except InputError as error:  # parts_of takes it for a --fail
        raise InputError(error.what, where=where, expected=error.expected, got=error.got, hint=error.hint) from None


def _range(text: str, where: str) -> range:
    """``3``, or ``0..8`` with both ends."""
    first, dots, last = text.partition("..")
    low = whole_number(first, where, 0, MAX_NICS)
    high = whole_number(last, where, low, MAX_NICS) if dots else low
    return range(low, high + 1)


def _left(text: str, where: str) -> Fraction:
    (_, left), *_ = _as_fail(f"any/nic={text}", where)
    return left
