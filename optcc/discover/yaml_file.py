"""The project's own topologies. YAML: a cluster written by hand, with every server its own if need be; it is written,
and read back exactly; presets are one argument (`PREFIX`). Every scalar of YAML is taken as text and then converted to
what its field holds, so that no value is surprised by its own guesses (``yes``, ``12:30``). Anchors, aliases and keys
given twice are refused.

.. code-block:: yaml

    optcc: 1                # version of this format
    fabric:                 # optional; one non-blocking fabric otherwise
      rails: true           # a NIC reaches NICs of its own rail
      spine: 2              # optional; joins the rails, 2 times oversubscribed
      pod_oversubscription: 3/2   # optional; a pod's uplink has 2/3 of its NICs' rates
    servers:
      - name: gpu-a         # optional; server<position> otherwise
        pod: east           # optional; which uplink it is behind
        count: 2            # optional; copies gpu-a-0, gpu-a-1 (server<position> when no name is given)
        gpus: 8             # optional; one per NIC otherwise
        nvlink: 450GB/s     # optional; one GPU's NVLink rate each way
        nics:
          - {name: mlx5_0, rate: 400Gb/s, rail: 0, gpu: 0}      # rail is optional; see `rails`
          - {name: mlx5_1, out: 400Gb/s, in: 200Gb/s, rail: 1}
          - {name: mlx5_2, rate: 388Gb/s, nameplate: 400Gb/s, spread: 0.8%}     # as `optcc calibrate` writes it
    measured:               # optional; how such rates came about
      date: 2026-11-20
      transport: verbs      # or local: emulated NICs
      path: python          # optional; what handled chunks: native, python or compiled
      alpha: 3.1us          # optional; latency from NIC to NIC
      per_chunk: 0.4us      # optional; what a port spends on each chunk beside its bytes
      spread: 1.1%          # optional; between repeated measurements of a NIC, the median over NICs
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec
import yaml

from optcc.discover.given import Given, apply_given
from optcc.discover.rails import Clue, numbered
from optcc.discover.topology import (
    UNUSED_NIC_RATE,
    Assumed,
    Assumption,
    Measured,
    Topology,
    describe,
    located,
    measured_line,
)  # fmt: skip
from optcc.errors import InputError
from optcc.files.writing import write_file
from optcc.values.cluster import Cluster, Fabric, Nic, Server, check_nic_count
from optcc.values.units import parse_factor, parse_rate, parse_seconds

DEEPEST = 8  # nested lists and mappings; the formats have 4
LONGEST = 255  # characters of one key or value

T = TypeVar("T")


class YamlDocument:
    """One YAML document: `content` of dicts, lists and texts, and where each of its places is.

    `places` holds, for a place such as ``$.servers[0].gpus``, its line and its text (or what it is); `keys` the lines
    of the keys, which may stand above their values. `kind` is what the document is, for people.
    """

    def __init__(self, data: bytes, path: str, kind: str) -> None:
        self.path = path
        self.kind = kind
        self.places: dict[str, tuple[int, str]] = {}
        self.keys: dict[str, int] = {}
        self._events: Iterator[Any] = yaml.parse(data, Loader=yaml.CBaseLoader)
        try:
            documents = [self._value(event, "$", 0) for event in self._events if isinstance(event, yaml.NodeEvent)]
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            raise InputError(
                "not YAML",
                where=f"{path}:{mark.line + 1}" if mark else path,
                expected=f"a {kind} in YAML",
                got=getattr(error, "problem", None) or getattr(error, "reason", None),
            ) from None
        if len(documents) != 1:
            raise InputError(f"not one {kind}", where=path, expected="one YAML document", got=len(documents))
        self.content = documents[0]

    def where(self, place: str) -> str:
        """``file:line: place``, with the line of what is around a place that is not written."""
        written = place
        while written not in self.places:
            written = written.rpartition(".")[0]
        return f"{self.path}:{self.places[written][0]}: {place}"

    def decode(self, type_: type[T], *, marker: str, version: str, fields_at: Callable[[str], Any]) -> T:
        """The document as a `type_`, a msgspec struct. Raises InputError naming line and field.

        marker, version : the first field of the format and what it must hold
        fields_at : the struct at a place, to name its fields
        """
        _, found = self.places.get(f"$.{marker}", (1, "nothing"))
        if found != version:
            hint = f"A {self.kind} file starts with the line `{marker}: {version}`."
            expected = f"{marker}: {version}"
            raise InputError(f"not a {self.kind}", where=self.path, expected=expected, got=found, hint=hint)
        try:
            return msgspec.convert(self.content, type_, strict=False)
        except msgspec.ValidationError as error:
            message, _, place = str(error).partition(" - at ")
        place = place.strip("`")
        place = place if place in self.places else "$"
        where, text = self.where(place), self.places[place][1]
        if field := re.search("(missing required|unknown) field `(.*)`", message, re.DOTALL):
            if field[1] == "missing required":
                raise InputError("a field is missing", where=where, expected=f"{field[2]}:")
            allowed = ", ".join(f.encode_name for f in msgspec.structs.fields(fields_at(place)))
            line = self.keys.get(f"{place}.{field[2]}", self.places[place][0])
            where = f"{self.path}:{line}: {place}"
            raise InputError("unknown field", where=where, expected=f"one of {allowed}", got=field[2])
        if "of length >= " in message and self.places[place][1] == "a list":
            raise InputError("an empty list", where=where, expected=_plain(message))
        parent, _, name = place.rpartition(".")
        values = _values(fields_at(parent), name) if parent else ()
        expected = f"one of {', '.join(values)}" if values else _plain(message)
        raise InputError("not what belongs here", where=where, expected=expected, got=text)

    def _value(self, event: Any, at: str, depth: int) -> Any:
        self._check(event, depth)
        line = event.start_mark.line + 1
        if isinstance(event, yaml.ScalarEvent):
            self.places[at] = (line, event.value)
            return event.value
        if isinstance(event, yaml.SequenceStartEvent):
            self.places[at] = (line, "a list")
            return [self._value(e, f"{at}[{i}]", depth + 1) for i, e in enumerate(self._until(yaml.SequenceEndEvent))]
        self.places[at] = (line, "a mapping")
        mapping: dict[str, Any] = {}
        for key in self._until(yaml.MappingEndEvent):
            self._check(key, depth)
            at_line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarEvent):
                raise self._refuse(key, "a key that is not a word", "a field's name")
            if key.value in mapping:
                raise self._refuse(key, f"{key.value} given twice", "each field once")
            self.keys[f"{at}.{key.value}"] = at_line
            mapping[key.value] = self._value(next(self._events), f"{at}.{key.value}", depth + 1)
        return mapping

    def _until(self, end: type[yaml.Event]) -> Iterator[Any]:
        for event in self._events:
            if isinstance(event, end):
                return
            yield event

    def _check(self, event: Any, depth: int) -> None:
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise self._refuse(event, "an anchor or alias", "every value written out")
        if depth > DEEPEST:
            raise self._refuse(event, "nested too deeply", f"at most {DEEPEST} levels")
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > LONGEST:
            raise self._refuse(event, "too long a value", f"at most {LONGEST} characters")

    def _refuse(self, event: Any, what: str, expected: str) -> InputError:
        return InputError(what, where=f"{self.path}:{event.start_mark.line + 1}", expected=expected)


def _values(struct: Any, name: str) -> tuple[str, ...]:
    """The values that field `name` of `struct` may have, where it is one of a few words."""
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
    return _words(fields.get(name))


def _words(type_: Any) -> tuple[str, ...]:
    inner = get_args(type_)
    return inner if get_origin(type_) is Literal else tuple(word for one in inner for word in _words(one))


def _plain(message: str) -> str:
    """What msgspec expected, in words of YAML."""
    expected = message.removeprefix("Expected ").partition(", got")[0].replace(" | null", "")
    for word, plain in _PLAIN_WORDS:
        expected = expected.replace(word, plain)
    return expected


_PLAIN_WORDS = (("`", ""), ("int", "a whole number"), ("array", "a list"), ("object", "a mapping"), ("str", "a text"))


VERSION = "1"

_Count = Annotated[int, msgspec.Meta(ge=1, le=65536)]


class _Nic(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    rate: str | None = None
    out: str | None = None
    into: str | None = msgspec.field(name="in", default=None)
    rail: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None
    gpu: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None
    nameplate: str | None = None
    spread: str | None = None


class _Fabric(msgspec.Struct, forbid_unknown_fields=True):
    rails: bool = False
    spine: str | None = None
    pod_oversubscription: str | None = None


class _Measured(msgspec.Struct, forbid_unknown_fields=True):
    date: str
    transport: str
    path: str = ""
    alpha: str | None = None
    per_chunk: str | None = None
    spread: str | None = None


class _Server(msgspec.Struct, forbid_unknown_fields=True):
    nics: Annotated[list[_Nic], msgspec.Meta(min_length=1)]
    name: str | None = None
    count: _Count = 1
    gpus: _Count | None = None
    nvlink: str | None = None
    pod: str | None = None

    def names(self, position: int) -> list[str]:
        """The names of the copies, the first of which is server number `position` of the cluster."""
        if self.name is None:
            return [f"server{position + i}" for i in range(self.count)]
        return [self.name] if self.count == 1 else [f"{self.name}-{i}" for i in range(self.count)]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    optcc: str
    servers: Annotated[list[_Server], msgspec.Meta(min_length=1)]
    fabric: _Fabric = msgspec.field(default_factory=_Fabric)
    measured: _Measured | None = None


def read_yaml(data: bytes, path: str, given: Given) -> Topology:
    """The cluster of a YAML file. Raises InputError naming `path`, line and field, such as ``$.servers[0].nics[1]``."""
    document = YamlDocument(data, path, "topology")
    file = document.decode(_File, marker="optcc", version=VERSION, fields_at=_struct_at)
    check_nic_count(sum(entry.count * len(entry.nics) for entry in file.servers), path)
    assumed = Assumed()
    nic_rate = given.nic_rate
    servers: list[Server] = []
    for i, entry in enumerate(file.servers):
        at = f"$.servers[{i}]"
        nics = tuple(_nic(nic, f"{at}.nics[{n}]", document, given) for n, nic in enumerate(entry.nics))
        nvlink = Fraction(0) if entry.nvlink is None else parse_rate(entry.nvlink, document.where(f"{at}.nvlink"))
        if entry.gpus is None:
            assumed.add(document.where(at), "no gpus; one GPU per NIC is assumed", "gpus: in the file")
        names = entry.names(len(servers))
        with located(document.where(at)):
            first = Server(names[0], nics, entry.gpus or len(nics), nvlink, entry.pod)
            servers.extend(replace(first, name=name) for name in names)
    if nic_rate:
        unrated = sum(nic.rate is None and nic.out is None for entry in file.servers for nic in entry.nics)
        filled = f"the rate given with --nic-rate is taken for the NICs without one ({unrated} of them)"
        assumed.add(*((path, filled) if unrated else ("", UNUSED_NIC_RATE)))
    with located(path):
        cluster = Cluster(tuple(servers), fabric=_fabric(file.fabric, document))
    nameplate = _nameplates(file, cluster, document)
    cluster = replace(cluster, pristine=_healthy(cluster, nameplate))
    topology = Topology(cluster, assumed.all(), measured=_measured(file, nameplate, document))
    beside = {(s.name, n.name): Clue((n.gpu,)) for s in servers for n in s.nics if n.rail is None and n.gpu is not None}
    found = numbered(topology, beside)
    return found if cluster.fabric.rails else replace(found, assumed=topology.assumed)  # else they do not matter


def _struct_at(place: str) -> type[msgspec.Struct]:
    if place.startswith("$.measured"):
        return _Measured
    return _Fabric if place.startswith("$.fabric") else (_File, _Server, _Nic)[min(place.count("["), 2)]


def _fabric(entry: _Fabric, document: YamlDocument) -> Fabric:
    given = {"spine": entry.spine, "pod_oversubscription": entry.pod_oversubscription}
    factors = {k: parse_factor(v, document.where(f"$.fabric.{k}")) for k, v in given.items() if v is not None}
    return Fabric(rails=entry.rails, **factors)


def _nameplates(file: _File, cluster: Cluster, document: YamlDocument) -> dict[str, Fraction]:
    """By SERVER/NIC, bytes per second, of the NICs that have a nameplate beside their rate."""
    servers = iter(cluster.servers)
    found: dict[str, Fraction] = {}
    for i, entry in enumerate(file.servers):
        for server in (next(servers) for _ in range(entry.count)):
            for n, nic in enumerate(entry.nics):
                place = f"$.servers[{i}].nics[{n}]"
                if nic.spread is not None:
                    _percent(nic.spread, document.where(f"{place}.spread"))
                if nic.nameplate is not None:
                    rate = parse_rate(nic.nameplate, document.where(f"{place}.nameplate"))
                    found[f"{server.name}/{nic.name}"] = rate
    return found


def _healthy(cluster: Cluster, nameplate: dict[str, Fraction]) -> Cluster | None:
    """The cluster with every NIC as fast as the fastest of the same nameplate; None where it is so anyway.

    What a nameplate promises nobody gets, for headers and flow control; what another NIC of its kind gets, can be had.
    """
    best: dict[Fraction, Fraction] = {}
    for server in cluster.servers:
        for nic in server.nics:
            if plate := nameplate.get(f"{server.name}/{nic.name}"):
                best[plate] = max(best.get(plate, Fraction(0)), nic.out_rate, nic.in_rate)
    servers = []
    for server in cluster.servers:
        nics = []
        for nic in server.nics:
            rate = best.get(nameplate.get(f"{server.name}/{nic.name}", Fraction(0)))
            nics.append(nic if rate is None else replace(nic, out_rate=rate, in_rate=rate))
        servers.append(replace(server, nics=tuple(nics)))
    healthy = replace(cluster, servers=tuple(servers))
    return None if healthy == cluster else healthy


def _measured(file: _File, nameplate: dict[str, Fraction], document: YamlDocument) -> Measured | None:
    """How the rates were measured, if they were."""
    at = "$.measured"
    how = file.measured
    if how is None:
        return None
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", how.date):
        raise InputError("not a date", where=document.where(f"{at}.date"), expected="YYYY-MM-DD", got=how.date[:40])
    if how.transport not in ("local", "tcp", "verbs"):
        where = document.where(f"{at}.transport")
        raise InputError("not a transport", where=where, expected="local or verbs", got=how.transport[:40])
    if how.path not in ("", "native", "python", "compiled"):
        where = document.where(f"{at}.path")
        raise InputError("not a path of chunks", where=where, expected="native, python or compiled", got=how.path[:40])
    times = {"alpha": how.alpha, "per_chunk": how.per_chunk}
    seconds = {k: None if v is None else parse_seconds(v, document.where(f"{at}.{k}")) for k, v in times.items()}
    spread = Fraction(0) if how.spread is None else _percent(how.spread, document.where(f"{at}.spread"))
    return Measured(how.date, how.transport, seconds["alpha"], seconds["per_chunk"], spread, nameplate, how.path)


def _percent(text: str, where: str) -> Fraction:
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,6})?%", text):
        raise InputError("not a percentage", where=where, expected="such as 0.8%", got=text[:40])
    return Fraction(text[:-1]) / 100


def _nic(entry: _Nic, at: str, document: YamlDocument, asked: Given) -> Nic:
    given = {
        key: text for key, text in (("rate", entry.rate), ("out", entry.out), ("in", entry.into)) if text is not None
    }
    rates = {key: parse_rate(text, document.where(f"{at}.{key}")) for key, text in given.items()}
    if not rates and (filled := asked.rate_of(entry.name) or asked.nic_rate):
        rates = {"rate": filled}
    if rates.keys() not in ({"rate"}, {"out", "in"}):
        raise InputError(
            "not the rate of a NIC",
            where=document.where(at),
            expected="rate, or out and in",
            got=" and ".join(rates) or "neither",
            hint=None if rates else "Write it there, or give it for all such NICs with --nic-rate 400Gb/s.",
        )
    out, into = (rates["rate"], rates["rate"]) if "rate" in rates else (rates["out"], rates["in"])
    with located(document.where(at)):
        return Nic(entry.name, out, into, entry.rail, entry.gpu)


_UNITS = ((10**9, "Gb/s"), (10**6, "Mb/s"), (10**3, "kb/s"), (1, "b/s"))


def write_yaml(
    cluster: Cluster,
    *,
    comments: Sequence[str] = (),
    measured: Measured | None = None,
    spreads: Mapping[str, float] | None = None,
) -> str:
    """The file's text.

    comments : lines for its head; measured : how the rates came about, with the nameplates that are kept beside them
    spreads : by SERVER/NIC, between repeated measurements, as a fraction of the rate
    """
    lines = [f"# {_printable(comment)}".rstrip() for comment in comments]
    lines += ["optcc: 1"]
    if measured is not None:
        lines += ["measured:", f"  date: {measured.date}", f"  transport: {measured.transport}"]
        lines += [f"  path: {measured.path}"] if measured.path else []
        times = (("alpha", measured.alpha_s), ("per_chunk", measured.per_chunk_s))
        lines += [f"  {key}: {_time(seconds)}" for key, seconds in times if seconds is not None]
        lines += [f"  spread: {_as_percent(float(measured.spread))}"]
    lines += _fabric_lines(cluster)
    lines.append("servers:")
    plates = measured.nameplate if measured else {}
    for server in cluster.servers:
        lines += _server(server, _nics(server, plates, spreads))
    return "\n".join(lines) + "\n"


def save_yaml(text: str, path: Path) -> None:
    """Write the whole file or none of it. Raises InputError where it cannot be written."""
    write_file(path, text.encode())


def _fabric_lines(cluster: Cluster) -> list[str]:
    fabric = cluster.fabric
    fields = ["  rails: true"] if fabric.rails else []
    factors = (("spine", fabric.spine), ("pod_oversubscription", fabric.pod_oversubscription))
    fields += [f"  {key}: {factor}" for key, factor in factors if factor is not None]
    return ["fabric:", *fields] if fields else []


def _server(server: Server, nics: list[str]) -> list[str]:
    lines = [f"  - name: {_text(server.name)}", f"    gpus: {server.gpus}"]
    if server.pod is not None:
        lines.append(f"    pod: {_text(server.pod)}")
    if server.nvlink_rate:
        lines.append(f"    nvlink: {_rate(server.nvlink_rate)}")
    return [*lines, "    nics:", *nics]


def _nics(server: Server, plates: Mapping[str, Fraction], spreads: Mapping[str, float] | None) -> list[str]:
    return [_nic_line(nic, f"{server.name}/{nic.name}", plates, spreads or {}) for nic in server.nics]


def _nic_line(nic: Nic, name: str, plates: Mapping[str, Fraction], spreads: Mapping[str, float]) -> str:
    fields = [f"name: {_text(nic.name)}"]
    if nic.out_rate == nic.in_rate:
        fields.append(f"rate: {_rate(nic.out_rate)}")
    else:
        fields += [f"out: {_rate(nic.out_rate)}", f"in: {_rate(nic.in_rate)}"]
    fields += [f"{key}: {value}" for key, value in (("rail", nic.rail), ("gpu", nic.gpu)) if value is not None]
    if name in plates:
        fields.append(f"nameplate: {_rate(plates[name])}")
    if name in spreads:
        fields.append(f"spread: {_as_percent(spreads[name])}")
    return f"      - {{{', '.join(fields)}}}"


def _rate(rate: Fraction) -> str:
    """Exactly, in the largest unit that takes at most three decimals; below 0.001 b/s it is rounded."""
    bits = Fraction(rate) * 8
    for factor, unit in _UNITS:
        scaled = bits / factor * 1000
        if scaled.denominator == 1:
            return f"{_decimal(int(scaled), 3)}{unit}"
    return f"{_decimal(round(bits * 1000), 3)}b/s"


def _time(seconds: Fraction) -> str:
    return f"{_decimal(round(seconds * 10**9), 3)}us"


def _as_percent(part: float) -> str:
    return f"{_decimal(min(round(part * 10_000), 99_999), 2)}%"


def _decimal(number: int, places: int) -> str:
    whole, rest = divmod(number, 10**places)
    return f"{whole}.{rest:0{places}d}".rstrip("0").rstrip(".")


def _text(name: str) -> str:
    """A name as YAML's quoted text: they hold no control characters, but may hold what YAML gives a meaning."""
    return "'" + name.replace("'", "''") + "'"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:500]


PREFIX = "uniform:"
"""Of a preset, a cluster in one argument: ``uniform:servers=8,nics=8,rate=400Gb/s,gpus=8,nvlink=450GB/s``.

servers and rate are needed; nics is 1, gpus one per NIC and nvlink 0 otherwise. The fabric does not block unless an
option says so. fabric=rails: a NIC reaches its own rail; spine=F: rails joined, F times oversubscribed; pods=N with
pod_oversubscription=F: equal blocks of servers, each behind an uplink."""
_KEYS = ("servers", "nics", "rate", "gpus", "nvlink", "fabric", "spine", "pods", "pod_oversubscription")


def corrected(topology: Topology, source: str, given: Given) -> Topology:
    """A preset, or YAML, with the options applied, and described."""
    cluster = apply_given(topology.cluster, given)
    lines = (f"{source}: optcc's own", *describe(cluster), *topology.read)
    if topology.measured is not None:
        lines = (*lines, measured_line(cluster, topology.measured))
    return replace(topology, cluster=cluster, read=lines)


def read_preset(text: str, nic_rate: Fraction | None) -> Topology:
    """The uniform cluster of `text`. Raises InputError naming the key that is wrong, missing or given twice."""
    values = _preset_items(text)
    rate = parse_rate(values["rate"], f"{PREFIX}rate") if "rate" in values else nic_rate
    if rate is None or "servers" not in values:
        hint = f"For example {PREFIX}servers=8,nics=8,rate=400Gb/s."
        raise InputError("key missing", where=text[:200], expected="servers= and rate=", hint=hint)
    with located(PREFIX.rstrip(":")):
        cluster = Cluster.uniform(
            servers=_count(values["servers"], "servers"),
            nics=_count(values.get("nics", "1"), "nics"),
            rate=rate,
            gpus=_count(values["gpus"], "gpus") if "gpus" in values else None,
            nvlink_rate=parse_rate(values["nvlink"], "nvlink") if "nvlink" in values else 0,
        )
        cluster = replace(_in_pods(cluster, values), fabric=_preset_fabric(values))
    return Topology(cluster, (Assumption("", UNUSED_NIC_RATE),) if nic_rate and "rate" in values else ())


def _preset_fabric(values: dict[str, str]) -> Fabric:
    kind = values.get("fabric", "flat")
    if kind not in ("flat", "rails"):
        raise InputError("unknown fabric", where="fabric", expected="flat or rails", got=kind[:40])
    factors = {key: parse_factor(values[key], key) for key in ("spine", "pod_oversubscription") if key in values}
    return Fabric(rails=kind == "rails", **factors)


def _in_pods(cluster: Cluster, values: dict[str, str]) -> Cluster:
    if ("pods" in values) != ("pod_oversubscription" in values):
        raise InputError(
            "half a description of pods", where="pods", expected="pods= and pod_oversubscription= together"
        )
    if "pods" not in values:
        return cluster
    pods, servers = _count(values["pods"], "pods"), len(cluster.servers)
    if not 1 <= pods <= servers or servers % pods:
        raise InputError("servers do not fill the pods", where="pods", expected=f"a divisor of {servers}", got=pods)
    dealt = (replace(s, pod=str(i * pods // servers)) for i, s in enumerate(cluster.servers))
    return replace(cluster, servers=tuple(dealt))


def _preset_items(text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for item in text.removeprefix(PREFIX).split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or key not in _KEYS:
            expected = f"KEY=VALUE with a key of {', '.join(_KEYS)}"
            raise InputError("not a preset's item", where=text[:200], expected=expected, got=item[:40])
        if key in values:
            raise InputError("key given twice", where=text[:200], expected=f"one {key}=", got=item[:40])
        values[key] = value
    return values


def _count(text: str, key: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text):
        raise InputError("not a number", where=key, expected="a whole number from 1", got=text[:40])
    return int(text)
