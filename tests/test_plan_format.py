"""The plan file: its header and columns, its versions, and what the reader refuses."""

from __future__ import annotations

import contextlib
import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, reject
from hypothesis import strategies as st
from numpy.typing import NDArray

import optcc
from optcc.cli import main
from optcc.errors import InfeasibleError, InputError
from optcc.plans.files import ALIGNMENT, HEADER, MAJOR, MINOR, archive, load_plan, save_plan
from optcc.plans.plan import Plan
from optcc.schedule.columns import GRANULE, stripes_of
from optcc.schedule.families import FAMILIES
from optcc.simulation.verifier import verify
from optcc.values.cluster import Cluster
from tests.conftest import clusters
from tests.effort import examples
from tests.plan_cases import GOLDEN, NAMES, again, bent, cases, change_at, npy, parts, unlike
from tests.test_families import ANY, offered

# Plans travel: the same content gives the same id and schedule, and a changed file is noticed.


@given(cluster=clusters(min_ranks=1, symmetric=False), nbytes=st.integers(1, 2**40))
def test_round_trip(cluster: Cluster, nbytes: int) -> None:
    plan = optcc.plan(cluster, nbytes)
    again = Plan.from_bytes(plan.to_bytes())
    assert again == plan
    assert again.plan_id == plan.plan_id


def test_ids_tell_plans_apart() -> None:
    cluster = Cluster.uniform(servers=4, nics=2, rate=1000)
    plans = [
        optcc.plan(cluster, 4096),
        optcc.plan(cluster, 4104),
        optcc.plan(cluster, 4096, segments=3),
        optcc.plan(cluster.degrade("server0/nic0"), 4096),
        optcc.plan(cluster, 4096).baseline("ring"),
    ]
    assert len({p.plan_id for p in plans[:4]}) == 4
    assert plans[0].plan_id == optcc.plan(cluster, 4096).plan_id


def test_a_plan_is_small() -> None:
    cluster = Cluster.uniform(servers=8, nics=8, rate=50_000_000_000).degrade("server1/nic0")
    assert len(optcc.plan(cluster, 2**30).to_bytes(packed=True)) < 100_000


def test_scaled_plan_scales_its_bound() -> None:
    from optcc.values.bound import check_certificate

    plan = optcc.plan(Cluster.uniform(servers=4, nics=2, rate=1000).degrade("server0/nic0"), 4096)
    slow = plan.scaled(plan.bound.seconds / 100)
    check_certificate(slow.cluster, slow.bound)
    assert slow.fluid_s == slow.bound.seconds == 100
    assert slow.bound.overhead == plan.bound.overhead


def test_save_is_whole_or_not_at_all(tmp_path: Path) -> None:
    plan = optcc.plan(Cluster.uniform(servers=3, rate=1000), 4096)
    save_plan(plan, tmp_path / "a.plan")
    assert load_plan(tmp_path / "a.plan") == plan
    assert [p.name for p in tmp_path.iterdir()] == ["a.plan"]
    with pytest.raises(optcc.OptccError, match="cannot be written"):
        save_plan(plan, tmp_path / "missing" / "a.plan")


def test_segments_follow_the_size() -> None:
    cluster = Cluster.uniform(servers=8, rate=1000)
    assert optcc.plan(cluster, 2**30).segments == 64
    assert optcc.plan(cluster, 2**20).segments == 8
    assert optcc.plan(cluster, 100).segments == 1


@pytest.mark.parametrize("segments", [0, -1, 10**9])
def test_segments_out_of_range(segments: int) -> None:
    with pytest.raises(InputError, match="--segments"):
        optcc.plan(Cluster.uniform(servers=3, rate=1000), 4096, segments=segments)


def test_unknown_baseline() -> None:
    with pytest.raises(InputError, match="unknown algorithm"):
        optcc.plan(Cluster.uniform(servers=3, rate=1000), 4096).baseline("magic")


def test_sizes_and_times_as_text() -> None:
    cluster = Cluster.uniform(servers=4, nics=2, rate="400Gb/s").degrade("server1/nic0")
    assert optcc.lower_bound(cluster, "64MiB") == optcc.lower_bound(cluster, 2**26)
    plan = optcc.plan(cluster, "1MiB", alpha="5us", per_chunk="1us")
    assert plan == optcc.plan(cluster, 2**20, alpha=Fraction(5, 10**6), per_chunk=1e-6)
    schedule = plan.schedule()
    assert optcc.simulate(schedule, alpha="5us").time_s == optcc.simulate(schedule, alpha=5e-6).time_s
    with optcc.Planner(cluster, ["1MiB", 2**10], alpha="5us", per_chunk="1us", background="off") as planner:
        assert planner.sizes == (2**10, 2**20)
        assert planner.plan("1MiB") == planner.current.plans[2**20]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda cluster: optcc.lower_bound(cluster, "1Gib"),
        lambda cluster: optcc.plan(cluster, "much"),
        lambda cluster: optcc.plan(cluster, None),
        lambda cluster: optcc.plan(cluster, 2.5),
        lambda cluster: optcc.plan(cluster, "1MiB", alpha="5"),
        lambda cluster: optcc.plan(cluster, "1MiB", per_chunk="-1us"),
        lambda cluster: optcc.plan(cluster, "1MiB", segments="4"),
        lambda cluster: optcc.simulate(optcc.plan(cluster, "1MiB").schedule(), alpha="5"),
        lambda cluster: optcc.run(optcc.plan(cluster, "1MiB"), local_rate="1Gib"),
        lambda cluster: optcc.Planner(cluster, "much", background="off"),
        lambda cluster: optcc.Planner(cluster, "1MiB", alpha="5", background="off"),
        lambda cluster: cluster.degrade("server0/nic0", "half"),
        lambda cluster: cluster.degrade(0),
    ],
)
def test_other_text_is_refused(wrong: Callable[[Cluster], object]) -> None:
    with pytest.raises(InputError):
        wrong(Cluster.uniform(servers=2, nics=2, rate="400Gb/s"))


def test_reprs_are_a_line() -> None:
    plan = optcc.plan(Cluster.uniform(servers=16, nics=8, rate="400Gb/s").degrade("server1/nic0"), "256MiB")
    family, depth = plan.family, plan.segments
    assert repr(plan) == f"<Plan {plan.plan_id}: {family}, {depth} segments, 256MiB per rank, 16 ranks, bound 1.268 ms>"
    assert repr(plan.schedule()).startswith("<Schedule: ")
    on_rails = optcc.load_topology("uniform:servers=4,nics=4,rate=400Gb/s,fabric=rails").cluster.degrade("server1/nic0")
    for value in (plan.schedule(), plan.bound, plan.cluster, optcc.lower_bound(on_rails, "1GiB")):
        assert len(repr(value)) < 300


# ---- what optcc writes ----------------------------------------------------------------------------------------------


def refused(data: bytes) -> bool:
    """Whether the reader refuses the file."""
    try:
        Plan.from_bytes(data)
    except InputError:
        return True
    return False


def test_every_family_is_among_the_cases() -> None:
    assert tuple(cases()) == NAMES
    assert {plan.family for plan in cases().values()} == set(FAMILIES)
    assert {plan.bound.certificate.kind for plan in cases().values()} >= {"traffic", "program"}


@examples(6)
@given(cluster=ANY, nbytes=st.integers(1, 2**22), segments=st.integers(1, 4))
def test_plans_of_random_clusters(cluster: Cluster, nbytes: int, segments: int) -> None:
    """They come back as they were, transfer by transfer, packed or not, also at other rates."""
    try:
        plans = offered(cluster, nbytes, segments)
    except InfeasibleError:
        reject()
    for plan in plans:
        for packed in (False, True):
            data = plan.to_bytes(packed=packed)
            found = Plan.from_bytes(data)
            assert found == plan
            assert found.to_bytes(packed=packed) == data
            assert (found.fluid_s, found.told, found.bound) == (plan.fluid_s, plan.told, plan.bound)
            here, there = found.schedule(), plan.schedule()
            assert (here.ports, here.routes, here.links) == (there.ports, there.routes, there.links)
            assert all(np.array_equal(getattr(here, name), getattr(there, name)) for name in COLUMNS)
        slower, as_made = found.scaled(Fraction(1, 3)), plan.scaled(Fraction(1, 3))  # what was told keeps its rates
        assert (slower.cluster, slower.bound, slower.fluid_s) == (as_made.cluster, as_made.bound, as_made.fluid_s)
        assert (slower.schedule().ports, slower.schedule().links) == (
            as_made.schedule().ports,
            as_made.schedule().links,
        )
        assert all(np.array_equal(getattr(slower.schedule(), name), getattr(there, name)) for name in COLUMNS)


COLUMNS = ("route", "offset", "length", "reduce", "stage", "segment", "dep_ptr", "dep_idx")


def test_the_same_plan_is_the_same_file() -> None:
    plan = cases()["trees"]
    assert plan.to_bytes() == replace(plan).to_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_the_header_is_text_and_columns_are_where_they_can_be_mapped(name: str) -> None:
    data = cases()[name].to_bytes()
    with zipfile.ZipFile(BytesIO(data)) as found:
        head = json.loads(found.read(HEADER))
        for info in found.infolist():
            start = info.header_offset + 30 + len(info.filename) + len(info.extra)
            assert start % ALIGNMENT == 0
            assert data[start : start + info.file_size] == found.read(info)
    assert head["plan_id"] == cases()[name].plan_id
    assert head["transfers"] == len(cases()[name].schedule())


def test_many_transfers_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = cases()["trees"]
    whole = len(plan.to_bytes())
    monkeypatch.setattr("optcc.plans.files.STORED", 1000)
    assert len(plan.to_bytes()) < whole / 2
    assert Plan.from_bytes(plan.to_bytes()) == plan
    monkeypatch.setattr("optcc.plans.files.MAX_FILE", 1000)
    with pytest.raises(InputError, match="too large for a plan"):
        plan.to_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_lanes_carry_every_byte_of_every_transfer(name: str) -> None:
    _, columns = parts(cases()[name].to_bytes())
    stripes = stripes_of(cases()[name].schedule())
    for row, (route, at) in enumerate(zip(columns["route"], columns["cut_at"], strict=True)):
        lanes = columns["lane_ptr"][route + 1] - columns["lane_ptr"][route]
        cut = columns["cut"][at : at + lanes + 1]
        assert (cut[0], cut[-1]) == (0, columns["length"][row])
        mine = stripes.length[stripes.ptr[row] : stripes.ptr[row + 1]]
        assert [part for part in np.diff(cut).tolist() if part] == mine.tolist()


# ---- another number of bytes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("nbytes", [1, 8, 40, 1000, 2001, 4096, 2**40])
def test_transfers_of_another_size_sum_every_byte(name: str, nbytes: int) -> None:
    plan = cases()[name]
    small = plan.schedule().resized(nbytes)
    verify(small)
    assert small.nbytes == nbytes
    assert set(((small.offset + small.length) % GRANULE).tolist()) <= {0, nbytes % GRANULE}
    if nbytes >= plan.bound.nbytes:
        assert len(small) == len(plan.schedule())


@given(cluster=ANY, sizes=st.tuples(st.integers(1, 2**20), st.integers(1, 2**20)))
def test_resized_plans_of_random_clusters(cluster: Cluster, sizes: tuple[int, int]) -> None:
    try:
        plans = offered(cluster, sizes[0], 2)
    except InfeasibleError:
        reject()
    for plan in plans:
        verify(plan.schedule().resized(sizes[1]))


# ---- what is refused ------------------------------------------------------------------------------------------------

NESTED = "nested-rings"
HEADERS: list[tuple[tuple[str | int, ...], Any, str]] = [
    (("format",), "other", "not a plan of this version"),
    (("version",), "1.0", "not a plan of this version"),
    (("version",), "4.0", "A newer optcc reads it"),
    (("version",), "2", "not a plan of this version"),
    (("version",), "2.00", "not a plan of this version"),
    (("version",), 2, "not a plan of this version"),
    (("segments",), 0, r"^plan: segments: .*whole number from 1 to 65536"),
    (("nbytes",), -8, "^plan: nbytes: "),
    (("nbytes",), "2000", "^plan: nbytes: "),
    (("nbytes",), ..., "a field 'nbytes'"),
    (("nbytes",), 2008, "changed after it was made"),
    (("transfers",), 83, r"^plan: route\.npy: .*expected 83 values, got '84'"),
    (("fluid_s",), 0.5, "not whole|not a plan file"),
    (("fluid_s",), "1.5", "^plan: fluid_s: "),
    (("told", 0), ["share"], r"^plan: told\[0\]: "),
    (("choices",), [], "^plan: choices: .*an object"),
    (("bound", "seconds"), "-1", "^plan: bound.seconds"),
    (("bound", "bottleneck"), None, "^plan: bound.bottleneck"),
    (("bound", "certificate", "kind"), "hearsay", r"bound\.certificate\.kind: .*cut, traffic, trivial"),
    (("fabric", "rails"), 0, "^plan: fabric.rails"),
    (("cluster",), [], "^plan: cluster"),
    (("cluster", 0, "name"), "a/b", "name"),
    (("cluster", 0, "nics", 0, "out"), 7, r"^plan: cluster\[0\]\.nics\[0\]\.out: .*such as "),
    (("cluster", 0, "nics", 0, "out"), "7", "changed after it was made.*port_out.npy"),
    (("cluster", 0, "gpus"), 2**70, "gpus"),
    (("pristine", 0, "name"), "x", r"pristine: .*other servers"),
    (("added",), 1, "changed after it was made"),
    (("bound", "added"), 1, "changed after it was made"),
    (("cluster", 0, "nics", 1, "added"), 1, "changed after it was made"),
]


@pytest.mark.parametrize(("path", "value", "says"), HEADERS, ids=str)
def test_a_header_that_is_wrong_is_refused_where_it_is(path: tuple[str | int, ...], value: Any, says: str) -> None:
    header, columns = parts(cases()[NESTED].to_bytes())
    assert not refused(again(header, columns))
    with pytest.raises(InputError, match=says):
        Plan.from_bytes(again(bent(header, path, value), columns))


CHANGES: list[tuple[str, Callable[[NDArray[Any]], NDArray[Any]], str]] = [
    ("route", change_at(3, 99), r"^plan: route\.npy\[3\]: .*expected 0 to \d+, got '99'"),
    ("route", change_at(3, -1), r"route\.npy\[3\]"),
    ("offset", change_at(3, -8), r"offset\.npy\[3\]"),
    ("offset", change_at(3, 1999), r"offset\.npy\[3\]"),
    ("offset", change_at(3, 2**63 - 1), r"offset\.npy\[3\]"),
    ("length", change_at(3, 0), r"length\.npy\[3\]: .*expected 1 to 2000"),
    ("length", change_at(3, 2**63 - 1), r"length\.npy\[3\]"),
    ("length", change_at(3, 8), "changed after it was made.*cut"),
    ("reduce", change_at(0, 2), r"reduce\.npy\[0\]"),
    ("stage", change_at(0, 0), r"stage\.npy\[0\]"),
    ("segment", change_at(0, -1), r"segment\.npy\[0\]"),
    ("dep_idx", change_at(0, 83), "earlier rows only"),
    ("dep_idx", change_at(0, -1), "earlier rows only"),
    ("dep_ptr", change_at(0, 1), "dep_ptr"),
    ("dep_ptr", change_at(1, 80), "dep_ptr"),
    ("dep_ptr", change_at(84, 1), "dep_ptr"),
    ("dep_ptr", lambda column: column[:-1], "dep_ptr.npy: .*expected 85 values"),
    ("lane_share", change_at(0, b"1/9"), "lanes that do not carry a transfer"),
    ("lane_share", change_at(0, b"0.5"), "lane_share"),
    ("lane_share", change_at(0, b"\xff"), "not text"),
    ("lane_out", change_at(0, 99), r"lane_out\.npy\[0\]"),
    ("lane_out", lambda column: column[::-1].copy(), "no such lane"),
    ("lane_ptr", change_at(1, 0), "lane_ptr"),
    ("route_src", change_at(0, 4), r"route_src\.npy\[0\]"),
    ("route_dst", lambda column: column[1:], "route_dst.npy"),
    ("port_name", change_at(0, b"x"), "port_name"),
    ("port_in", change_at(0, 1), "port_in"),
    ("cut", change_at(1, 0), "cut.npy as optcc writes it"),
    ("nbytes", change_at(0, 8), "nbytes.npy as optcc writes it"),
    ("offset", lambda column: column.astype(np.int32), r"offset\.npy: .*expected one dimension of <i8"),
    ("offset", lambda column: column.astype(">i8"), r"offset\.npy: .*expected one dimension of <i8"),
    ("offset", lambda column: column.reshape(2, -1), r"offset\.npy: .*expected one dimension"),
    ("offset", lambda column: column.astype(object), r"offset\.npy: .*expected one dimension"),
    ("offset", lambda column: column.astype("f8"), r"offset\.npy: .*expected one dimension"),
]


@pytest.mark.parametrize(("name", "change", "says"), CHANGES, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(CHANGES)])
def test_a_column_that_is_wrong_is_refused_where_it_is(
    name: str, change: Callable[[NDArray[Any]], NDArray[Any]], says: str
) -> None:
    """Although the id fits what is in the file."""
    header, columns = parts(cases()[NESTED].to_bytes())
    columns[name] = change(columns[name])
    with pytest.raises(InputError, match=says):
        Plan.from_bytes(again(header, columns))


def test_a_row_that_waits_for_what_lands_elsewhere_is_refused() -> None:
    header, columns = parts(cases()[NESTED].to_bytes())
    src, dst = (columns[name][columns["route"]] for name in ("route_src", "route_dst"))
    waiting = np.repeat(np.arange(len(src)), np.diff(columns["dep_ptr"]))
    place = next(i for i, row in enumerate(waiting) if (dst[:row] != src[row]).any())
    columns["dep_idx"][place] = np.flatnonzero(dst[: waiting[place]] != src[waiting[place]])[0]
    with pytest.raises(InputError, match="rows that land where the waiting one starts"):
        Plan.from_bytes(again(header, columns))


def test_pickled_arrays_are_not_opened() -> None:
    header, _ = parts(cases()[NESTED].to_bytes())
    evil = BytesIO()
    np.save(evil, np.array([print], dtype=object), allow_pickle=True)
    members = {HEADER: json.dumps(header, indent=1).encode(), "offset.npy": evil.getvalue()}
    with pytest.raises(InputError, match=r"offset\.npy: .*expected one dimension"):
        Plan.from_bytes(archive(members))


@pytest.mark.parametrize("name", ["offset", "rank_name", "cut"])
def test_a_column_that_is_missing_is_named(name: str) -> None:
    header, columns = parts(cases()[NESTED].to_bytes())
    del columns[name]
    with pytest.raises(InputError, match=rf"a column {name}\.npy"):
        Plan.from_bytes(again(header, columns))


def test_a_column_that_says_it_is_longer_takes_no_memory() -> None:
    header, columns = parts(cases()[NESTED].to_bytes())
    members = {HEADER: json.dumps(header, indent=1).encode()} | {
        f"{n}.npy": npy(column) for n, column in columns.items()
    }
    members["offset.npy"] = members["offset.npy"].replace(b"(84,)", b"(99999999999,)")
    with pytest.raises(InputError, match=r"offset\.npy: .*expected"):
        Plan.from_bytes(archive(members))


def test_what_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = cases()[NESTED].to_bytes(packed=True)
    monkeypatch.setattr("optcc.plans.files.MAX_UNPACKED", len(data))
    with pytest.raises(InputError, match="bytes unpacked"):
        Plan.from_bytes(data)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a plan file"),
        (b"PK", "not a plan file"),
        (b"PK\3\4", "not a plan file"),
        (b"GIF89a", "not a plan file"),
        (b'{"format": "optcc-plan", "version": "1.0"}', "not a plan of this version.*JSON"),
        (archive({"a": b"b"}), "other members"),
        (archive({HEADER: b"{}"}), "a column nbytes.npy"),
        (archive({HEADER: b"[" * 40 + b"]" * 40}), "nested deeper"),
        (archive({HEADER: b"\xff"}), "not a plan file"),
        (archive({HEADER: b'{"a": 1, "a": 1}'}), "a name twice"),
    ],
    ids=str,
)
def test_what_is_no_plan_at_all(data: bytes, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Plan.from_bytes(data)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_twice_or_packed_otherwise() -> None:
    for names, kind in (([HEADER, HEADER], zipfile.ZIP_STORED), ([HEADER], zipfile.ZIP_BZIP2)):
        file = BytesIO()
        with zipfile.ZipFile(file, "w", kind) as made:
            for name in names:
                made.writestr(name, "{}")
        with pytest.raises(InputError, match=r"one twice|packed in another way"):
            Plan.from_bytes(file.getvalue())


@given(data=st.binary(max_size=200))
def test_any_bytes_are_refused_in_words(data: bytes) -> None:
    for begin in (b"", b"PK\3\4"):
        with pytest.raises(InputError):
            Plan.from_bytes(begin + data)


@examples(60)
@given(data=st.data())
def test_damage_is_noticed(data: st.DataObject) -> None:
    """A byte of the file is another, or the file is shorter: it is refused, or it is the same plan."""
    name, packed = data.draw(st.sampled_from(sorted(cases()))), data.draw(st.booleans())
    whole = bytearray(cases()[name].to_bytes(packed=packed))
    place = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        whole[place] ^= data.draw(st.integers(1, 255))
    else:
        del whole[place:]
    try:
        found = Plan.from_bytes(bytes(whole))
    except InputError:
        return
    assert found == cases()[name]


@examples(60)
@given(data=st.data())
def test_an_edited_plan_is_noticed(data: st.DataObject) -> None:
    """Another value in a column is seen by the id; where the id is made to fit, what is wrong in itself is refused."""
    name = data.draw(st.sampled_from(sorted(cases())))
    header, columns = parts(cases()[name].to_bytes())
    column = columns[
        data.draw(st.sampled_from(sorted(n for n, c in columns.items() if len(c) and c.dtype.kind != "S")))
    ]
    place = data.draw(st.integers(0, len(column) - 1))
    value = data.draw(st.sampled_from([0, 1, 2, 7, 255]))
    if column[place] == value:
        reject()
    column[place] = value
    assert refused(unlike(header, columns))
    with contextlib.suppress(InputError):
        found = Plan.from_bytes(again(header, columns))
        assert found != cases()[name]


# ---- versions -------------------------------------------------------------------------------------------------------


def _newer(header: dict[str, Any]) -> dict[str, Any]:
    def extended(value: Any) -> Any:
        if isinstance(value, dict):
            return {**{n: extended(part) for n, part in value.items()}, "added_later": [{"x": None}, -7, "\u00e9"]}
        return [extended(part) for part in value] if isinstance(value, list) else value

    kept = {name: header[name] for name in ("format", "version", "plan_id", "choices")}
    major = header["version"].partition(".")[0]
    return {**kept, **extended(header), **kept, "version": f"{major}.{MINOR + 1}"}


@pytest.mark.parametrize("name", NAMES)
def test_fields_and_columns_of_a_newer_minor_are_passed_over(name: str) -> None:
    header, columns = parts(cases()[name].to_bytes())
    newer, more = _newer(header), {**columns, "added_later": np.arange(3.0)}
    assert Plan.from_bytes(again(newer, more)) == cases()[name]
    for wrong in (again({**newer, "version": header["version"]}, columns), again(header, more), unlike(newer, more)):
        with pytest.raises(InputError, match="changed after it was made"):
            Plan.from_bytes(wrong)


def test_a_newer_minor_must_still_agree_on_what_is_known() -> None:
    header, columns = parts(cases()["trees"].to_bytes())
    columns["cut"][1] += 8
    with pytest.raises(InputError, match=r"cut\.npy as optcc writes it"):
        Plan.from_bytes(again(_newer(header), columns))
    header, columns = parts(cases()["trees"].to_bytes())
    header["bound"]["certificate"]["kind"] = "hearsay"
    with pytest.raises(InputError, match=rf"version {MAJOR}\.{MINOR + 1}: a newer optcc may read it"):
        Plan.from_bytes(again(_newer(header), columns))


SOLVED = ("packed-trees-rails",)
"""Plans whose shares a solver finds: made anew they differ between machines with the same packages."""


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*/*.plan")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_published_files_stay_readable(path: Path) -> None:
    """And say what they said: made anew, they are the same."""
    plan, anew = load_plan(path), cases()[path.stem]
    assert plan.to_bytes() == path.read_bytes()
    if path.stem not in SOLVED:
        assert plan == anew
        return
    assert (plan.bound, plan.family, plan.segments) == (anew.bound, anew.family, anew.segments)
    times = [optcc.simulate(each.schedule()).time_s for each in (plan, anew)]
    assert times[0] == pytest.approx(times[1], rel=0.15), "of two segments: which goes first is worth so much"


def test_there_are_published_files() -> None:
    assert len(list(GOLDEN.glob(f"{MAJOR}.{MINOR}/*.plan"))) >= 4


def test_a_plan_goes_through_pipes() -> None:
    made = CliRunner().invoke(main, ["plan", "uniform:servers=3,nics=2,rate=1Gb/s", "--size", "1MiB", "-o", "-"])
    assert made.exit_code == 0, made.output
    done = CliRunner().invoke(main, ["verify", "-"], input=made.stdout_bytes)
    assert done.exit_code == 0, done.output
