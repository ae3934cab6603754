"""The plan reader in C: compiled as C99 and C++17, its words those of Python, damaged files under sanitizers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from optcc import api
from optcc.errors import InfeasibleError
from optcc.plans.files import HEADER, MAJOR, MINOR, archive
from optcc.plans.plan import Plan
from optcc.schedule.columns import stripes_of
from optcc.values.cluster import Cluster
from tests.plan_cases import GOLDEN, NAMES, again, cases, change_at, npy, parts
from tests.test_families import ANY, offered

pytestmark = pytest.mark.cc

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = ROOT / "optcc" / "include"
WALK = ROOT / "examples" / "walk_plan.c"
FUZZ = ROOT / "tests" / "plan_fuzz.c"
STRICT = ("-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion", "-Wshadow")
SANITIZERS = ("-O1", "-g1", "-fno-inline", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def build(language: str, source: Path, program: Path, *flags: str, include: Path = INCLUDE) -> Path:
    """Compile; a warning is a failure."""
    compiler, *first = {"c": ("cc", "-std=c99"), "c++": ("g++", "-std=c++17", "-x", "c++")}[language]
    command = [compiler, *first, *STRICT, *flags, f"-I{include}", str(source), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(scope="module", params=["c", "c++"])
def walk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """examples/walk_plan.c as a program."""
    return build(request.param, WALK, tmp_path_factory.mktemp("walk") / "walk")


@pytest.fixture(scope="module")
def fuzz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/plan_fuzz.c as a program that sanitizers watch."""
    return build("c", FUZZ, tmp_path_factory.mktemp("fuzz") / "fuzz", *SANITIZERS)


def call(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("rank", ["3", "-1", "x", "", "1x", "99999999999"])
def test_the_example_refuses_a_rank_that_is_none(walk: Path, tmp_path: Path, rank: str) -> None:
    (tmp_path / "a.plan").write_bytes(api.plan(Cluster.uniform(servers=3, nics=1, rate=10**9), 4096).to_bytes())
    done = call(walk, tmp_path / "a.plan", rank)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"RANK is a number from 0 to 2, not {rank}" in done.stderr


# ---- what it says ---------------------------------------------------------------------------------------------------


def tables(plan: Plan, version: str = f"{MAJOR}.{MINOR}") -> Iterator[str]:
    """From the cluster and the schedule."""
    schedule = plan.schedule()
    yield f"plan {plan.plan_id} format {version} bytes {plan.bound.nbytes} transfers {len(schedule)}"
    for rank in plan.cluster.ranks:
        yield f"rank {rank.index} {rank.name} server {rank.server}"
    for i, port in enumerate(schedule.ports):
        rail = -1 if port.rail is None else port.rail
        rates = f"out {port.out_rate:.0f} in {port.in_rate:.0f}"
        yield f"port {i} {port.name} rank {port.rank} rail {rail} nvlink {int(port.nvlink)} {rates}"
    for i, link in enumerate(schedule.links):
        yield f"link {i} {link.name} rate {link.rate:.0f}"
    for i, route in enumerate(schedule.routes):
        yield f"route {i} from {route.src} to {route.dst}"
        for lane in route.lanes:
            over = "".join(f" over {link}" for link in lane.links)
            yield f"  lane port {lane.out} to port {lane.into} share {lane.share}{over}"


def moves(plan: Plan, rank: int) -> Iterator[str]:
    """What a rank sends and receives, from the schedule and its stripes: the file's cuts are not asked."""
    schedule, stripes = plan.schedule(), stripes_of(plan.schedule())
    for row in range(len(schedule)):
        src, dst = int(schedule.src[row]), int(schedule.dst[row])
        if rank not in (src, dst):
            continue
        at, length = int(schedule.offset[row]), int(schedule.length[row])
        what = f"send to {dst}" if src == rank else f"receive from {src}"
        after = "".join(f" after {dep}" for dep in schedule.deps(row)) if src == rank else ""
        word, stage = "add" if schedule.reduce[row] else "copy", schedule.stage[row]
        yield f"{row} {what} {word} bytes {at} to {at + length} stage {stage} segment {schedule.segment[row]}{after}"
        for i in range(stripes.ptr[row], stripes.ptr[row + 1]):
            end = at + int(stripes.length[i])
            yield f"  port {stripes.out[i]} to port {stripes.into[i]} bytes {at} to {end}"
            at = end


@pytest.mark.parametrize("name", [name for name in NAMES if name != "whole-vectors"])  # which has receive buffers
def test_c_says_what_python_says(walk: Path, name: str, tmp_path: Path) -> None:
    plan, path = cases()[name], tmp_path / "a.plan"
    path.write_bytes(plan.to_bytes())
    for rank in range(len(plan.cluster.ranks)):
        done = call(walk, path, rank)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [*tables(plan), *moves(plan, rank)]
    assert call(walk, path).stdout.splitlines() == list(tables(plan))


@settings(max_examples=4, suppress_health_check=list(HealthCheck))
@given(cluster=ANY, nbytes=st.integers(1, 2**22), segments=st.integers(1, 4))
def test_c_says_what_python_says_of_random_clusters(walk: Path, cluster: Cluster, nbytes: int, segments: int) -> None:
    try:
        plans = offered(cluster, nbytes, segments)
    except InfeasibleError:
        reject()
    for plan in (each for each in plans if not each.schedule().beside):
        with NamedTemporaryFile("wb", suffix=".plan") as file:
            file.write(plan.to_bytes())
            file.flush()
            done = call(walk, file.name, 0)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [*tables(plan), *moves(plan, 0)]


def test_c_passes_over_columns_of_a_newer_minor(walk: Path, tmp_path: Path) -> None:
    plan, path = cases()["trees"], tmp_path / "a.plan"
    header, columns = parts(plan.to_bytes())
    newer = again({**header, "version": f"{MAJOR}.{MINOR + 7}", "added": 1}, {**columns, "added": np.arange(3.0)})
    path.write_bytes(newer)
    said = call(walk, path, 1).stdout.splitlines()
    assert said[0].replace(parts(newer)[0]["plan_id"], plan.plan_id) == next(tables(plan, f"{MAJOR}.{MINOR + 7}"))
    assert said[1:] == [*list(tables(plan))[1:], *moves(plan, 1)]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob(f"{MAJOR}.*/*.plan")), ids=lambda p: f"{p.parent.name}-{p.name}")
def test_c_reads_every_published_version(walk: Path, path: Path) -> None:
    done = call(walk, path, 0)
    assert done.returncode == 0, done.stderr
    assert parts(path.read_bytes())[0]["plan_id"] in done.stdout


def test_c_refuses_plans_with_receive_buffers(walk: Path, tmp_path: Path) -> None:
    """Who folds in place would read what others are still to get."""
    path = tmp_path / "a.plan"
    path.write_bytes(cases()["whole-vectors"].to_bytes())
    done = call(walk, path, 0)
    assert done.returncode
    assert "another version" in done.stderr


# ---- what it refuses ------------------------------------------------------------------------------------------------


CHANGES: list[tuple[str, Callable[[NDArray[Any]], NDArray[Any]], str]] = [
    ("nbytes", change_at(0, 8), "offset (error 4)"),
    ("nbytes", change_at(0, -8), "nbytes (error 4)"),
    ("nbytes", lambda column: column[:0], "nbytes (error 3)"),
    ("rank_server", change_at(0, -1), "rank_server (error 4)"),
    ("rank_server", lambda column: column[1:], "rank_server (error 3)"),
    ("port_rank", change_at(0, 4), "port_rank (error 4)"),
    ("port_rank", change_at(0, 3), "of other ranks than the route (error 4)"),
    ("port_nvlink", change_at(0, 2), "port_nvlink (error 4)"),
    ("route_src", change_at(0, 4), "route_src (error 4)"),
    ("lane_out", change_at(0, 99), "lane_out (error 4)"),
    ("lane_ptr", change_at(1, 0), "lane_ptr (error 4)"),
    ("lane_link_ptr", change_at(1, 1), "lane_link_ptr (error 4)"),
    ("route", change_at(3, 99), "route (error 4)"),
    ("route", change_at(3, -1), "route (error 4)"),
    ("offset", change_at(3, 1999), "offset, length (error 4)"),
    ("offset", change_at(3, -8), "offset (error 4)"),
    ("length", change_at(3, 0), "length (error 4)"),
    ("length", change_at(3, 8), "cut (error 4)"),
    ("reduce", change_at(3, 2), "reduce (error 4)"),
    ("stage", change_at(3, 0), "stage (error 4)"),
    ("dep_ptr", change_at(1, 80), "dep_ptr (error 4)"),
    ("dep_ptr", lambda column: column[:-1], "dep_ptr (error 4)"),
    ("dep_idx", change_at(0, 83), "not an earlier row"),
    ("dep_idx", change_at(0, -1), "dep_idx (error 4)"),
    ("cut_at", change_at(3, 10**6), "cut_at (error 4)"),
    ("cut", change_at(1, 2000), "cut (error 4)"),
    ("offset", lambda column: column.astype(np.int32), "offset (error 3)"),
    ("offset", lambda column: column.astype(">i8"), "offset (error 3)"),
    ("offset", lambda column: column.reshape(2, -1), "offset (error 3)"),
    ("offset", lambda column: column.astype(object), "offset (error 3)"),
    ("port_name", lambda column: np.arange(8), "port_name (error 3)"),
]


@pytest.mark.parametrize(("name", "change", "says"), CHANGES, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(CHANGES)])
def test_c_refuses_a_wrong_column(
    walk: Path, name: str, change: Callable[[NDArray[Any]], NDArray[Any]], says: str, tmp_path: Path
) -> None:
    header, columns = parts(cases()["nested-rings"].to_bytes())
    path = tmp_path / "a.plan"
    path.write_bytes(again(header, columns))
    assert call(walk, path).returncode == 0
    columns[name] = change(columns[name])
    path.write_bytes(again(header, columns))
    done = call(walk, path)
    assert (done.returncode, done.stdout) == (1, "")
    assert says in done.stderr


def test_c_refuses_what_is_no_plan(walk: Path, tmp_path: Path) -> None:
    plan = cases()["nested-rings"]
    header, columns = parts(plan.to_bytes())
    without = {name: column for name, column in columns.items() if name != "cut"}
    arrays = {f"{name}.npy": npy(column) for name, column in columns.items()}
    text = json.dumps(header, indent=1).encode()
    shifted = {HEADER: text, "x": b"x"} | arrays
    wrong = [
        (b"", "not a zip"),
        (b'{"format": "optcc-plan"}', "not a zip"),
        (plan.to_bytes()[:-1], "not a zip"),
        (plan.to_bytes(packed=True), "unzip it, then zip -0 (error 2)"),
        (again({**header, "version": f"{MAJOR + 1}.0"}, columns), "another version (error 1)"),
        (again({**header, "plan_id": "", "format": "x"}, columns), "header.json"),
        (archive(arrays), "header.json (error 1)"),
        (archive({HEADER: json.dumps(header).encode()} | arrays), "header.json"),
        (again(header, without), "cut (error 3)"),
        (archive(shifted).replace(b"offset.npy", b"offsex.npy"), "offset (error 3)"),
    ]
    for data, says in wrong:
        (tmp_path / "a.plan").write_bytes(data)
        done = call(walk, tmp_path / "a.plan")
        assert (done.returncode, says in done.stderr) == (1, True), done.stderr


# ---- damage ---------------------------------------------------------------------------------------------------------

ROUNDS = 3000


@pytest.mark.long
@pytest.mark.parametrize("name", ["nested-rings", "packed-trees-rails"])
def test_damaged_files_under_sanitizers(fuzz: Path, name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = tmp_path / "a.plan"
    path.write_bytes(cases()[name].to_bytes())
    done = call(fuzz, path, request.config.getoption("--hypothesis-seed"), ROUNDS)
    assert done.returncode == 0, done.stderr
    opened, refused = (int(word) for word in done.stdout.split()[1::2])
    assert opened > 1  # a rate or a number for people may be exchanged
    assert refused > ROUNDS / 2


FORGOTTEN = [
    ("the end of a member", "start > end || end - start < size", "0"),
    ("the limits of a column", "limit[k] >= 0 &&", "0 &&"),
    ("the end of the directory", "at > end || end - at < 46 ||", ""),
]


@pytest.mark.parametrize(("what", "check", "without"), FORGOTTEN, ids=[what for what, _, _ in FORGOTTEN])
def test_a_check_that_is_forgotten_is_noticed(what: str, check: str, without: str, tmp_path: Path) -> None:
    header = (INCLUDE / "optcc_plan.h").read_text(encoding="utf-8")
    assert header.count(check) == 1
    (tmp_path / "optcc_plan.h").write_text(header.replace(check, without), encoding="utf-8")
    broken = build("c", FUZZ, tmp_path / "fuzz", *SANITIZERS, include=tmp_path)
    path = tmp_path / "a.plan"
    path.write_bytes(cases()["nested-rings"].to_bytes())
    done = call(broken, path, 1, ROUNDS)
    assert done.returncode != 0
    assert "AddressSanitizer" in done.stderr or "runtime error" in done.stderr
    assert "optcc_plan.h" in done.stderr


def test_a_warning_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "bad.c").write_text('#include "optcc_plan.h"\nint main(void) { int x; return 0; }\n', encoding="utf-8")
    with pytest.raises(AssertionError, match="unused variable"):
        build("c", tmp_path / "bad.c", tmp_path / "bad")
