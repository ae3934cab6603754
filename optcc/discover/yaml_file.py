"""The project's YAML: a cluster written by hand, with every server its own if need be.

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
          - {name: mlx5_0, rate: 400Gb/s, rail: 0, gpu: 0}      # rail is optional; the position otherwise
          - {name: mlx5_1, out: 400Gb/s, in: 200Gb/s, rail: 1}

Every scalar is taken as text and then converted to what its field holds, so that no value is surprised by YAML's own
guesses (``yes``, ``12:30``). Anchors, aliases and keys given twice are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Any

import msgspec
import yaml

from optcc.cluster import Cluster, Fabric, Nic, Server, check_nic_count
from optcc.discover.topology import UNUSED_NIC_RATE, Topology, located
from optcc.errors import InputError
from optcc.units import parse_factor, parse_rate

VERSION = "1"
DEEPEST = 8  # nested lists and mappings; the format has 4
LONGEST = 255  # characters of one key or value

_Count = Annotated[int, msgspec.Meta(ge=1, le=65536)]


class _Nic(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    rate: str | None = None
    out: str | None = None
    into: str | None = msgspec.field(name="in", default=None)
    rail: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None
    gpu: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None


class _Fabric(msgspec.Struct, forbid_unknown_fields=True):
    rails: bool = False
    spine: str | None = None
    pod_oversubscription: str | None = None


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


def read_yaml(data: bytes, path: str, nic_rate: Fraction | None) -> Topology:
    """The cluster of a YAML file. Raises InputError naming `path`, line and field, such as ``$.servers[0].nics[1]``."""
    document = _Document(data, path)
    file = _convert(document)
    check_nic_count(sum(entry.count * len(entry.nics) for entry in file.servers), path)
    notes = []
    servers: list[Server] = []
    for i, entry in enumerate(file.servers):
        at = f"$.servers[{i}]"
        nics = tuple(_nic(nic, rail, f"{at}.nics[{rail}]", document, nic_rate) for rail, nic in enumerate(entry.nics))
        nvlink = Fraction(0) if entry.nvlink is None else parse_rate(entry.nvlink, document.where(f"{at}.nvlink"))
        if entry.gpus is None:
            notes.append(f"{document.where(at)}: no gpus; one GPU per NIC is assumed.")
        names = entry.names(len(servers))
        with located(document.where(at)):
            first = Server(names[0], nics, entry.gpus or len(nics), nvlink, entry.pod)
            servers.extend(replace(first, name=name) for name in names)
    if nic_rate:
        unrated = sum(nic.rate is None and nic.out is None for entry in file.servers for nic in entry.nics)
        filled = f"{path}: the rate given with --nic-rate is taken for the NICs without one ({unrated} of them)."
        notes.append(filled if unrated else UNUSED_NIC_RATE)
    with located(path):
        return Topology(Cluster(tuple(servers), fabric=_fabric(file.fabric, document)), tuple(notes))


def _fabric(entry: _Fabric, document: _Document) -> Fabric:
    given = {"spine": entry.spine, "pod_oversubscription": entry.pod_oversubscription}
    factors = {k: parse_factor(v, document.where(f"$.fabric.{k}")) for k, v in given.items() if v is not None}
    return Fabric(rails=entry.rails, **factors)


def _nic(entry: _Nic, position: int, at: str, document: _Document, nic_rate: Fraction | None) -> Nic:
    given = {
        key: text for key, text in (("rate", entry.rate), ("out", entry.out), ("in", entry.into)) if text is not None
    }
    rates = {key: parse_rate(text, document.where(f"{at}.{key}")) for key, text in given.items()}
    if not rates and nic_rate:
        rates = {"rate": nic_rate}
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
        return Nic(entry.name, out, into, position if entry.rail is None else entry.rail, entry.gpu)


class _Document:
    """One YAML document: `content` of dicts, lists and texts, and where each of its places is.

    `places` holds, for a place such as ``$.servers[0].gpus``, its line and its text (or what it is).
    """

    def __init__(self, data: bytes, path: str) -> None:
        self.path = path
        self.places: dict[str, tuple[int, str]] = {}
        self._events: Iterator[Any] = yaml.parse(data, Loader=yaml.CBaseLoader)
        try:
            documents = [self._value(event, "$", 0) for event in self._events if isinstance(event, yaml.NodeEvent)]
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            raise InputError(
                "not YAML",
                where=f"{path}:{mark.line + 1}" if mark else path,
                expected="a topology in YAML",
                got=getattr(error, "problem", None) or getattr(error, "reason", None),
            ) from None
        if len(documents) != 1:
            raise InputError("not one topology", where=path, expected="one YAML document", got=len(documents))
        self.content = documents[0]

    def where(self, place: str) -> str:
        """``file:line: place``."""
        return f"{self.path}:{self.places[place][0]}: {place}"

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
            if not isinstance(key, yaml.ScalarEvent):
                raise self._refuse(key, "a key that is not a word", "a field's name")
            if key.value in mapping:
                raise self._refuse(key, f"{key.value} given twice", "each field once")
            mapping[key.value] = self._value(next(self._events), f"{at}.{key.value}", depth + 1)
        return mapping

    def _until(self, end: type[yaml.Event]) -> Iterator[Any]:
        for event in self._events:
            if isinstance(event, end):
                return
            yield event

    def _check(self, event: Any, depth: int) -> None:
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise self._refuse(event, "an anchor or alias", "every value written out (count: makes equal servers)")
        if depth > DEEPEST:
            raise self._refuse(event, "nested too deeply", f"at most {DEEPEST} levels")
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > LONGEST:
            raise self._refuse(event, "too long a value", f"at most {LONGEST} characters")

    def _refuse(self, event: Any, what: str, expected: str) -> InputError:
        return InputError(what, where=f"{self.path}:{event.start_mark.line + 1}", expected=expected)


_PLAIN_WORDS = (("`", ""), ("int", "a whole number"), ("array", "a list"), ("object", "a mapping"), ("str", "a text"))


def _convert(document: _Document) -> _File:
    _, version = document.places.get("$.optcc", (1, "nothing"))
    if version != VERSION:
        hint = f"A topology file starts with the line `optcc: {VERSION}`."
        raise InputError("not a topology", where=document.path, expected=f"optcc: {VERSION}", got=version, hint=hint)
    try:
        return msgspec.convert(document.content, _File, strict=False)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at ")
    place = place.strip("`")
    place = place if place in document.places else "$"
    where, text = document.where(place), document.places[place][1]
    if field := re.search("(missing required|unknown) field `(.*)`", message, re.DOTALL):
        if field[1] == "missing required":
            raise InputError("a field is missing", where=where, expected=f"{field[2]}:")
        kind = _Fabric if place.startswith("$.fabric") else (_File, _Server, _Nic)[min(place.count("["), 2)]
        allowed = ", ".join(f.encode_name for f in msgspec.structs.fields(kind))
        raise InputError("unknown field", where=where, expected=f"one of {allowed}", got=field[2])
    expected = message.removeprefix("Expected ").partition(", got")[0].replace(" | null", "")
    for word, plain in _PLAIN_WORDS:
        expected = expected.replace(word, plain)
    raise InputError("not what belongs here", where=where, expected=expected, got=text)
