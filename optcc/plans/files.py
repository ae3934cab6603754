"""Plans as files: a header for people, and the transfers in columns, as `numpy.savez` writes them.

docs/plan-format.md describes header, columns and the version policy. Every field and column is checked in reading.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zipfile
import zlib
from dataclasses import dataclass
from fractions import Fraction
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, NoReturn

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from optcc.errors import InputError
from optcc.files.reading import ZIP, read_file, shown
from optcc.files.writing import write_file
from optcc.plans.plan import Plan, Recorded
from optcc.schedule.columns import BESIDE, Schedule, cuts_of
from optcc.schedule.recipe import Segments
from optcc.schedule.routes import Routes, no_collection
from optcc.values.bound import Bound, Certificate, ProgramCertificate
from optcc.values.cluster import Cluster, InFile
from optcc.values.json_records import Bytes, FieldError, Members, agree, canonical, lines, parse, read_json, write_json

FORMAT = "optcc-plan"
MAJOR, MINOR = 2, 0
"""Of the format: a reader takes every minor of its own major, and no other major."""
BESIDE_MAJOR = 3
"""Of plans with receive buffers (`Schedule.beside`), and of nothing else, so that readers that fold in place refuse
them. Otherwise as `MAJOR`, with the same minors."""
MAX_FILE = 64 * 2**20
"""Bytes of a file."""
MAX_UNPACKED = 2**31
"""Bytes of its members together."""
STORED = 32 * 2**20
"""Columns of more bytes are deflated. The reader in C, which maps columns as they stand, wants them unpacked first."""
HEADER = "header.json"
ALIGNMENT = 64
"""Columns that are not deflated begin at a multiple of so many bytes of the file, so that they can be mapped."""
_VERSION = re.compile(r"(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})")
_MAKE = "`optcc plan TOPOLOGY --size SIZE -o FILE` writes one."
_ANEW = "Make it anew with optcc plan."


@dataclass(frozen=True)
class BoundFields:
    """A bound as plans have it, without what proves that it is reached: an executor needs neither.

    seconds : no AllReduce takes less; fault_free_s : the same before any failure
    bottleneck : the certificate in words
    """

    seconds: Fraction
    fault_free_s: Fraction
    bottleneck: str
    certificate: Certificate | ProgramCertificate


@dataclass(frozen=True)
class Header:
    """What a plan file says for people, and for Python.

    nbytes : bytes of the buffer on each rank; transfers : rows of the columns
    choices : the family's parameters; told : the same in words, label and text
    fluid_s : seconds with infinitely many segments and no latency
    """

    family: str
    segments: Segments
    nbytes: Bytes
    transfers: Bytes
    fluid_s: Fraction
    told: tuple[tuple[str, str], ...]
    choices: Annotated[dict[str, Any], Members()]
    bound: BoundFields
    cluster: InFile


def header_of(plan: Plan) -> dict[str, Any]:
    """The header as JSON values, without the id."""
    bound = plan.bound
    told = BoundFields(bound.seconds, bound.fault_free_s, bound.bottleneck, bound.certificate)
    head = Header(
        plan.family, plan.segments, bound.nbytes, len(plan.schedule()), plan.fluid_s, plan.told, plan.choices, told,
        plan.cluster,
    )  # fmt: skip
    return {
        "format": FORMAT,
        "version": f"{BESIDE_MAJOR if plan.schedule().beside else MAJOR}.{MINOR}",
        **write_json(Header, head),
    }


# Columns. Tables of ranks, ports, links, routes and lanes, then the transfers; ..._ptr says where a row's part of the
# next column begins, and has one entry more than rows.

KINDS = {
    "nbytes": "<i8",
    "rank_name": "S", "rank_server": "<i4",
    "port_name": "S", "port_rank": "<i4", "port_rail": "<i4", "port_nvlink": "|u1", "port_out": "<f8", "port_in": "<f8",
    "link_name": "S", "link_rate": "<f8",
    "route_src": "<i4", "route_dst": "<i4", "lane_ptr": "<i8",
    "lane_out": "<i4", "lane_into": "<i4", "lane_share": "S", "lane_link_ptr": "<i8", "lane_link": "<i4",
    "route": "<i4", "offset": "<i8", "length": "<i8", "reduce": "|u1", "stage": "|u1", "segment": "<i4",
    "dep_ptr": "<i8", "dep_idx": "<i4",
    "cut_at": "<i8", "cut": "<i8",
}  # fmt: skip
"""Name of a column -> its type; "S": text in UTF-8, filled up with zeros."""
Columns = dict[str, NDArray[Any]]


def columns_of(schedule: Schedule, cluster: Cluster) -> Columns:
    """All columns of a plan file."""
    ports, links, routes = schedule.ports, schedule.links, schedule.routes
    lanes = [lane for route in routes for lane in route.lanes]
    cut_at, cut = _cuts(schedule)
    shares = {name: str(share).encode() for name, share in {id(lane.share): lane.share for lane in lanes}.items()}
    values: dict[str, Any] = {
        "nbytes": [schedule.nbytes],
        "rank_name": [rank.name.encode() for rank in cluster.ranks],
        "rank_server": [rank.server for rank in cluster.ranks],
        "port_name": [port.name.encode() for port in ports],
        "port_rank": [port.rank for port in ports],
        "port_rail": [-1 if port.rail is None else port.rail for port in ports],
        "port_nvlink": [port.nvlink for port in ports],
        "port_out": [port.out_rate for port in ports],
        "port_in": [port.in_rate for port in ports],
        "link_name": [link.name.encode() for link in links],
        "link_rate": [link.rate for link in links],
        "route_src": [route.src for route in routes],
        "route_dst": [route.dst for route in routes],
        "lane_ptr": list(accumulate((len(route.lanes) for route in routes), initial=0)),
        "lane_out": [lane.out for lane in lanes],
        "lane_into": [lane.into for lane in lanes],
        "lane_share": [shares[id(lane.share)] for lane in lanes],
        "lane_link_ptr": list(accumulate((len(lane.links) for lane in lanes), initial=0)),
        "lane_link": [link for lane in lanes for link in lane.links],
        "cut_at": cut_at,
        "cut": cut,
    }
    return {name: np.ascontiguousarray(values.get(name, getattr(schedule, name, ())), KINDS[name]) for name in KINDS}


def _cuts(schedule: Schedule) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each row where in the second list its lanes' cuts begin: lane l carries bytes cut[l] to cut[l + 1] of it."""
    lengths, length = np.unique(schedule.length, return_inverse=True)
    pairs, pair = np.unique(schedule.route.astype(np.int64) * len(lengths) + length, return_inverse=True)
    route, place = np.divmod(pairs, max(len(lengths), 1))
    begin, cuts = cuts_of(schedule.routes, route, lengths[place])
    return begin[pair], cuts


def _id(header: dict[str, Any], columns: Columns) -> str:
    own = {name: value for name, value in header.items() if name != "plan_id"}
    digest = hashlib.sha256(canonical(own).encode())
    for name, column in columns.items():
        digest.update(f"\n{name} {column.dtype.str} {len(column)}\n".encode())
        digest.update(np.ascontiguousarray(column).reshape(-1).data)  # no copy: there are hundreds of MB
    return digest.hexdigest()[:16]


def id_of(plan: Plan) -> str:
    """Sixteen hex digits of SHA-256 over the header and the columns."""
    return _id(header_of(plan), columns_of(plan.schedule(), plan.cluster))


def write_plan(plan: Plan, packed: bool | None = None) -> bytes:
    """The bytes of a plan file; `packed` as in `Plan.to_bytes`."""
    header, columns = header_of(plan), columns_of(plan.schedule(), plan.cluster)
    header = {"format": FORMAT, "version": header["version"], "plan_id": _id(header, columns), **header}
    size = sum(column.nbytes for column in columns.values())
    if packed is None:
        packed = size > STORED
    text = lines(header, 0).encode() + b"\n"
    members = {HEADER: text, **{f"{name}.npy": _npy(column) for name, column in columns.items()}}
    data = archive(members, packed)
    if len(data) > MAX_FILE or size + len(text) > MAX_UNPACKED:
        what = f"at most {MAX_FILE} bytes, and {MAX_UNPACKED} unpacked"
        raise InputError(
            "too large for a plan", where="plan", expected=what, got=f"{len(data)}, {size} unpacked",
            hint="Fewer --segments.",
        )  # fmt: skip
    return data


def archive(members: dict[str, bytes], packed: bool = False) -> bytes:
    """A zip of these members, the same bytes for the same members; not `packed`: `ALIGNMENT` bytes apart."""
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name, data in members.items():
            info = zipfile.ZipInfo(name)  # of 1980
            info.external_attr = 0o644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
            if not packed:  # an extra field of zeros
                info.extra = struct.pack("<HH", 0xD935, pad := -(file.tell() + 34 + len(name)) % ALIGNMENT) + bytes(pad)
            made.writestr(info, data)
    return file.getvalue()


def _npy(column: NDArray[Any]) -> bytes:
    file = BytesIO()
    npy.write_array(file, column, version=(1, 0), allow_pickle=False)
    return file.getvalue()


# Reading.


def read_plan(data: bytes, where: str) -> Plan:
    """Read a plan back. Raises InputError for anything that is not an intact plan of a version that is known.

    Fields and columns that a newer minor version has added are passed over.
    """
    raw, text, columns = _members(data, where)
    minor = _minor(raw, where)
    if not text.startswith(_begins(raw)):
        _changed(where, f"{HEADER} that begins with format, version and id, each on a line", "another beginning")
    try:
        head: Header = read_json(Header, raw)
        told = head.bound
        bound = Bound(head.nbytes, told.seconds, told.fault_free_s, told.bottleneck, told.certificate)
        with no_collection():
            schedule = _schedule(head, columns, beside=raw["version"].startswith(f"{BESIDE_MAJOR}."))
            recipe = Recorded(head.family, head.segments, head.choices, head.told, head.fluid_s, schedule)
            plan = Plan(head.cluster, bound, recipe)
            known, own = header_of(plan), columns_of(schedule, head.cluster)
    except FieldError as error:
        newer = f"It is of version {raw['version']}: a newer optcc may read it." if minor > MINOR else None
        place = f"{where}: {error.place}" if error.place else where
        raise InputError(
            "not an intact plan", where=place, expected=error.expected, got=error.got, hint=newer
        ) from None
    except InputError as error:
        place = f"{where}: {error.where}" if error.where else where
        raise InputError(error.what, where=place, expected=error.expected, got=error.got, hint=error.hint) from None
    said, made = _id(raw, columns), raw.get("plan_id")
    if made != said:
        _changed(where, f"plan_id {said}", str(made)[:60])
    for name, column in own.items():
        if not np.array_equal(column, columns[name]):
            _changed(where, f"{name}.npy as optcc writes it", "other values")
    strictly = minor <= MINOR
    outside = ("plan_id", "format", "version")
    header = {name: value for name, value in raw.items() if name not in outside}
    known = {name: value for name, value in known.items() if name not in outside}
    if (strictly and columns.keys() != own.keys()) or not agree(known, header, strictly=strictly):
        _changed(where, "what optcc writes for this plan", "other fields or columns")
    return plan


def _changed(where: str, expected: str, got: str) -> NoReturn:
    raise InputError("the plan was changed after it was made", where=where, expected=expected, got=got, hint=_ANEW)


def _members(data: bytes, where: str) -> tuple[dict[str, Any], bytes, Columns]:
    """The header's JSON value, its text, and the columns of a file."""

    def broken(got: str) -> InputError:
        hint = f"Was it copied whole? {_MAKE}"
        return InputError(
            "not a plan file", where=where, expected="a zip of header.json and columns", got=got, hint=hint
        )

    if data[:64].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        raise InputError(
            "not a plan of this version", where=where, expected=f"a zip, version {MAJOR}.x", got="JSON", hint=_ANEW
        )
    if not data.startswith(ZIP):
        raise broken(f"{len(data)} bytes, which begin otherwise" if data else "nothing")
    columns: Columns = {}
    raw: Any = None
    text = b""
    try:
        with zipfile.ZipFile(BytesIO(data)) as found:
            infos = found.infolist()
            if sum(info.file_size for info in infos) > MAX_UNPACKED:
                raise broken(f"more than {MAX_UNPACKED} bytes unpacked")
            names = [info.filename for info in infos]
            if len(set(names)) != len(names) or HEADER not in names or len(names) > 4 * len(KINDS):
                raise broken("other members, or one twice")
            for info in infos:
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
                    raise broken(f"{info.filename[:60]}, packed in another way")
                content = found.read(info)
                if info.filename == HEADER:
                    raw = parse(content.decode())
                    text = content
                elif info.filename.endswith(".npy"):
                    name = info.filename.removesuffix(".npy")
                    columns[name] = _column(name, content)
    except FieldError as error:
        place = f"{where}: {error.place}"
        raise InputError("not an intact plan", where=place, expected=error.expected, got=error.got) from None
    except (  # what zipfile raises for broken archives, and for kinds of archive that it cannot read
        zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, RuntimeError, EOFError, ValueError, OSError,
        OverflowError, LookupError,
    ) as error:  # fmt: skip
        raise broken(str(error)[:200] or type(error).__name__) from None
    if missing := [name for name in KINDS if name not in columns]:
        raise InputError(
            "not an intact plan", where=where, expected=f"a column {missing[0]}.npy", got="none", hint=_ANEW
        )
    return raw, text, columns


def _begins(raw: dict[str, Any]) -> bytes:
    """How a header begins, so that readers without JSON find version and id."""
    said = [f' "{name}": "{raw.get(name)}"' for name in ("format", "version", "plan_id")]
    return ("{\n" + ",\n".join(said) + ",").encode()


def _column(name: str, data: bytes) -> NDArray[Any]:
    """The column that a member is, a copy. FieldError for another type or shape than it should have."""
    file, place = BytesIO(data), f"{name}.npy"
    try:
        if npy.read_magic(file) != (1, 0):
            raise ValueError("another version of npy")
        shape, backwards, kind = npy.read_array_header_1_0(file)
    except ValueError as error:
        raise FieldError("an array as numpy.save writes it", str(error)).inside(place) from None
    wanted = KINDS.get(name)
    right = wanted is None or (kind.kind == "S" if wanted == "S" else kind.str == wanted)
    if kind.hasobject or not right or len(shape) != 1 or backwards or not 0 < kind.itemsize <= MAX_TEXT:
        raise FieldError(f"one dimension of {wanted}", f"{kind.str} in {shape}").inside(place)
    if len(data) - file.tell() != shape[0] * kind.itemsize:
        raise FieldError(f"{shape[0]} values", f"{len(data) - file.tell()} bytes").inside(place)
    return np.frombuffer(data, kind, offset=file.tell()).copy()


MAX_TEXT = 4096
"""Bytes of a name in a column."""


def _minor(raw: Any, where: str) -> int:
    """The minor version of a file of our major. Raises InputError for anything else."""
    said = raw.get("version") if isinstance(raw, dict) else type(raw).__name__
    found = _VERSION.fullmatch(said) if isinstance(said, str) else None
    if (
        not isinstance(raw, dict)
        or raw.get("format") != FORMAT
        or not found
        or int(found[1]) not in (MAJOR, BESIDE_MAJOR)
    ):
        newer = found is not None and int(found[1]) > BESIDE_MAJOR
        raise InputError(
            "not a plan of this version",
            where=where,
            expected=f'"format": "{FORMAT}", "version": "{MAJOR}.x" or "{BESIDE_MAJOR}.x"',
            got=str(said)[:60],
            hint="A newer optcc reads it." if newer else _ANEW,
        )
    return int(found[2])


def _schedule(head: Header, columns: Columns, *, beside: bool) -> Schedule:
    """The transfers, over the ports and links of the header's cluster. FieldError where columns do not fit.

    beside : whether some of them must, and may, land in receive buffers
    """
    cluster, routes = head.cluster, Routes(head.cluster)
    ranks, ports = len(cluster.ranks), len(routes.ports)
    src, dst, lane_ptr = (columns[name] for name in ("route_src", "route_dst", "lane_ptr"))
    out, into, texts = (columns[name] for name in ("lane_out", "lane_into", "lane_share"))
    _same_length("route_dst", dst, len(src))
    _same_length("lane_into", into, len(out))
    _same_length("lane_share", texts, len(out))
    _within("route_src", src, 0, ranks)
    _within("route_dst", dst, 0, ranks)
    _within("lane_out", out, 0, ports)
    _within("lane_into", into, 0, ports)
    _starts("lane_ptr", lane_ptr, len(src), len(out), least=1)
    known: dict[bytes, Fraction] = {text: _share(text) for text in set(texts.tolist())}
    shares = [known[text] for text in texts.tolist()]
    lanes = list(zip(out.tolist(), into.tolist(), shares, strict=True))
    starts = lane_ptr.tolist()
    for route, (a, b) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        routes.given(a, b, lanes[starts[route] : starts[route + 1]])
    rows = {name: columns[name] for name in ("route", "offset", "length", "reduce", "stage", "segment")}
    for name, column in rows.items():
        _same_length(name, column, head.transfers)
    _within("route", rows["route"], 0, len(src))
    _within("length", rows["length"], 1, head.nbytes + 1)
    _within("offset", rows["offset"], 0, head.nbytes)
    _within("offset", rows["offset"] + rows["length"], 0, head.nbytes + 1)
    _within("reduce", rows["reduce"], 0, BESIDE + beside)
    if beside and not (rows["reduce"] == BESIDE).any():
        raise FieldError(f"a {BESIDE}, in a plan of version {BESIDE_MAJOR}", "none").inside("reduce.npy")
    _within("stage", rows["stage"], 1, 5)
    _within("segment", rows["segment"], 0, 2**31)
    dep_ptr, dep = columns["dep_ptr"], columns["dep_idx"]
    _starts("dep_ptr", dep_ptr, head.transfers, len(dep), least=0)
    waiting = np.repeat(np.arange(head.transfers), np.diff(dep_ptr))
    if ((dep < 0) | (dep >= waiting)).any():
        raise FieldError("earlier rows only", "a row that waits for itself or a later one").inside("dep_idx.npy")
    if (dst[rows["route"][dep]] != src[rows["route"][waiting]]).any():
        raise FieldError("rows that land where the waiting one starts", "another rank").inside("dep_idx.npy")
    return Schedule(
        ranks=ranks,
        nbytes=head.nbytes,
        ports=routes.ports,
        routes=tuple(routes.table),
        links=routes.links,
        dep_ptr=dep_ptr,
        dep_idx=dep.astype(np.int64),
        **{**rows, "reduce": rows["reduce"].astype(np.uint8 if beside else np.bool_)},
    )


def _same_length(name: str, column: NDArray[Any], length: int) -> None:
    if len(column) != length:
        raise FieldError(f"{length} values", f"{len(column)}").inside(f"{name}.npy")


def _within(name: str, column: NDArray[Any], low: int, high: int) -> None:
    wrong = np.flatnonzero((column < low) | (column >= high))
    if len(wrong):
        at = int(wrong[0])
        raise FieldError(f"{low} to {high - 1}", str(column[at])).inside(at).inside(f"{name}.npy")


def _starts(name: str, column: NDArray[Any], rows: int, end: int, *, least: int) -> None:
    _same_length(name, column, rows + 1)
    _within(name, column, 0, end + 1)
    if column[0] != 0 or column[-1] != end or (np.diff(column) < least).any():
        raise FieldError(f"from 0 up to {end}", "other steps").inside(f"{name}.npy")


def _share(text: bytes) -> Fraction:
    try:
        return read_json(Fraction, text.decode())  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        raise FieldError("an exact number", "not text").inside("lane_share.npy") from None
    except FieldError as error:
        raise error.inside("lane_share.npy") from None


def load_plan(path: Path | str) -> Plan:
    """Read a plan file; ``-`` is standard input. Raises InputError for anything that is not an intact plan."""
    data = read_file(path, MAX_FILE, what="plan", expected="a plan file", hint=_MAKE)
    return Plan.from_bytes(data, where=shown(path))


def save_plan(plan: Plan, path: Path, packed: bool | None = None) -> None:
    """Write a plan file, whole or not at all; ``-`` is standard output; `packed` as in `Plan.to_bytes`.

    Raises InputError where it cannot be written, and for one that `load_plan` would not read again, of its size.
    """
    write_file(path, write_plan(plan, packed))
