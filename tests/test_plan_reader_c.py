"""The plan reader in C: compiled as C99 and C++17, its words those of Python, damaged files under sanitizers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from optcc import api
from optcc.errors import InfeasibleError
from optcc.plans.files import MAJOR, MINOR
from optcc.plans.lowered import lowered_content
from optcc.plans.plan import Plan
from optcc.schedule.columns import stripes_of
from optcc.values.cluster import Cluster
from tests.plan_cases import GOLDEN, again, bent, cases, extended
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
    made = api.plan(Cluster.uniform(servers=3, nics=1, rate=10**9), 4096)
    for depth in ("transfers", "layout"):
        file = tmp_path / f"{depth}.json"
        file.write_text(made.to_json(depth))
        done = call(walk, file, rank)
        said = f"RANK is a number from 0 to 2, not {rank}" if depth == "transfers" else "a plan made with --lowered"
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr


# ---- what it says ---------------------------------------------------------------------------------------------------


def head(plan: Plan, version: str = f"{MAJOR}.{MINOR}") -> Iterator[str]:
    yield f"plan {plan.plan_id} format {version} family {plan.recipe.family} bytes {plan.bound.nbytes}"
    for i, server in enumerate(plan.cluster.servers):
        yield f"server {i} {server.name} gpus {server.gpus}"
        yield from (f"  nic {nic.name} out {nic.out_rate} in {nic.in_rate}" for nic in server.nics)


def layout(plan: Plan) -> Iterator[str]:
    """From the cluster and the schedule; only the channels are those of the file."""
    schedule = plan.schedule()
    for rank in plan.cluster.ranks:
        yield f"rank {rank.index} {rank.name} server {rank.server}"
    for i, port in enumerate(schedule.ports):
        rail = -1 if port.rail is None else port.rail
        yield f"port {i} {port.name} rank {port.rank} rail {rail} nvlink {int(port.nvlink)}"
    for i, route in enumerate(schedule.routes):
        yield f"route {i} from {route.src} to {route.dst}"
        for lane in route.lanes:
            over = "".join(f" over {link}" for link in lane.links)
            yield f"  lane port {lane.out} to port {lane.into} share {lane.share}{over}"
    for c, channel in enumerate(lowered_content(plan, "transfers")["channels"]):
        ring = channel["kind"] == "ring"
        if ring:
            yield " ".join(map(str, ["channel", c, "ring", *channel["members"], "leaves", *channel["leaves"]]))
        else:
            arcs = [*channel["up"], "down", *channel["down"]]
            yield " ".join(map(str, ["channel", c, "tree root", channel["root"], "up", *arcs]))
        for segment in channel["segments"]:
            yield f"  segment {segment['segment']}" + (f" {segment['ordering']}" if ring else "")
            for s, (begin, end) in enumerate(zip(segment["cuts"], segment["cuts"][1:], strict=False)):
                owner = channel["owners"][s] if ring else channel["root"]
                via = f" via {channel['via'][s]}" if ring and channel["leaves"] else ""
                if begin < end:
                    yield f"    section {s} bytes {begin} to {end} owner {owner}{via}"


def moves(plan: Plan, rank: int) -> Iterator[str]:
    """What a rank sends and receives, from the schedule and its stripes: the file's splits are not asked."""
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


@pytest.mark.parametrize("name", cases())
def test_c_says_what_python_says(walk: Path, name: str, tmp_path: Path) -> None:
    plan, path = cases()[name], tmp_path / "plan.json"
    path.write_text(plan.to_json("transfers"), encoding="utf-8")
    for rank in range(len(plan.cluster.ranks)):
        done = call(walk, path, rank)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [*head(plan), *layout(plan), *moves(plan, rank)]


@settings(max_examples=4, suppress_health_check=list(HealthCheck))
@given(cluster=ANY, nbytes=st.integers(1, 2**22), segments=st.integers(1, 4))
def test_c_says_what_python_says_of_random_clusters(walk: Path, cluster: Cluster, nbytes: int, segments: int) -> None:
    try:
        plans = offered(cluster, nbytes, segments)
    except InfeasibleError:
        reject()
    for plan in plans:
        with NamedTemporaryFile("w", suffix=".json") as file:
            file.write(plan.to_json("transfers"))
            file.flush()
            done = call(walk, file.name, 0)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [*head(plan), *layout(plan), *moves(plan, 0)]


def test_c_reads_plans_of_every_depth(walk: Path, tmp_path: Path) -> None:
    plan, path = cases()["trees"], tmp_path / "plan.json"
    for depth, expected in ((None, head(plan)), ("layout", [*head(plan), *layout(plan)])):
        path.write_text(plan.to_json(depth), encoding="utf-8")
        assert call(walk, path).stdout.splitlines() == list(expected)


@pytest.mark.parametrize("name", sorted(cases()))
def test_c_passes_over_fields_of_a_newer_minor(walk: Path, name: str, tmp_path: Path) -> None:
    plan, path = cases()[name], tmp_path / "plan.json"
    newer = {**extended(json.loads(plan.to_json("transfers"))), "version": f"{MAJOR}.{MINOR + 7}"}
    path.write_text(again(newer), encoding="utf-8")
    said = call(walk, path, 1).stdout.splitlines()
    own = json.loads(again(newer))["plan_id"]
    first = next(head(plan, f"{MAJOR}.{MINOR + 7}")).replace(plan.plan_id, own)
    assert said == [first, *list(head(plan))[1:], *layout(plan), *moves(plan, 1)]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*/*.plan.json")), ids=lambda p: f"{p.parent.name}-{p.name}")
def test_c_reads_every_published_version(walk: Path, path: Path) -> None:
    done = call(walk, path, 0)
    assert done.returncode == 0, done.stderr
    assert json.loads(path.read_text(encoding="utf-8"))["plan_id"] in done.stdout


def test_names_of_any_script(walk: Path, tmp_path: Path) -> None:
    """Escaped as Python writes them, and raw, also beyond the first plane of Unicode."""
    content = json.loads(cases()["nested-rings"].to_json())
    content["cluster"][0]["name"] = 'k\u00fchl-\u8d85-\U0001f600-"\\'
    path = tmp_path / "plan.json"
    for ascii_only in (True, False):
        path.write_text(json.dumps(content, ensure_ascii=ascii_only), encoding="utf-8")
        assert f"server 0 {content['cluster'][0]['name']} gpus" in call(walk, path).stdout


# ---- what it refuses ------------------------------------------------------------------------------------------------

ODD = 77777777
REFUSED: list[tuple[tuple[str | int, ...], str]] = [
    (("cluster", 0, "name"), "name"),
    (("cluster", 0, "nics", 0, "out"), "out"),
    (("lowered", "ranks", 0, "server"), "server"),
    (("lowered", "ports", 0, "rank"), "rank"),
    (("lowered", "ports", 0, "nvlink"), "nvlink"),
    (("lowered", "routes", 0, "src"), "src"),
    (("lowered", "routes", 0, "lanes", 0, "out"), "out"),
    (("lowered", "routes", 0, "lanes", 0, "links"), "links"),
    (("lowered", "routes", 0, "splits", 0, "cuts", 1), "cuts"),
    (("lowered", "channels", 0, "members", 0), "members"),
    (("lowered", "channels", 0, "owners", 0), "owners"),
    (("lowered", "channels", 0, "via", 0), "via"),
    (("lowered", "channels", 0, "segments", 0, "ordering"), "ordering"),
    (("lowered", "channels", 0, "segments", 0, "cuts", 1), "cuts"),
    (("lowered", "transfers", "route", 3), "route"),
    (("lowered", "transfers", "offset", 3), "offset"),
    (("lowered", "transfers", "length", 3), "length"),
    (("lowered", "transfers", "reduce", 3), "reduce"),
    (("lowered", "transfers", "dep_ptr", 3), "dep_ptr"),
    (("lowered", "transfers", "deps", 3), "deps"),
]


@pytest.mark.parametrize(("place", "what"), REFUSED, ids=str)
def test_c_names_the_field_and_its_byte(walk: Path, place: tuple[str | int, ...], what: str, tmp_path: Path) -> None:
    wrong = again(bent(json.loads(cases()["nested-rings"].to_json("transfers")), place, ODD))
    path = tmp_path / "plan.json"
    path.write_text(wrong, encoding="utf-8")
    done = call(walk, path)
    assert done.returncode == 1
    assert f"byte {wrong.index(str(ODD))}: {what} (error" in done.stderr


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("format",), "other", "format (error 3)"),
        (("version",), f"{MAJOR + 1}.0", "version (error 3)"),
        (("version",), "1.00", "version (error 3)"),
        (("version",), 1, "version (error 3)"),
        (("plan_id",), "0123", "plan_id (error 4)"),
        (("nbytes",), ..., "nbytes (error 4)"),
        (("nbytes",), 8, "length (error 5)"),
        (("lowered", "depth"), "deep", "depth (error 6)"),
        (("lowered", "channels", 0, "kind"), "star", "kind (error 6)"),
        (("lowered", "channels", 0, "segments", 0, "ordering"), "sideways", "ordering (error 6)"),
        (("lowered", "channels", 0, "segments", 0, "ordering"), "plain", "ordering (error 5)"),
        (("lowered", "routes", 0, "lanes", 0, "share"), "2/3", "share (error 5)"),
        (("lowered", "transfers", "deps"), [], "dep_ptr (error 5)"),
        (("lowered", "transfers", "stage", 0), 0, "stage (error 5)"),
        (("lowered", "transfers", "src", 0), 0, "route (error 5)"),
    ],
    ids=str,
)
def test_c_refuses(walk: Path, place: tuple[str | int, ...], value: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(bent(json.loads(cases()["nested-rings"].to_json("transfers")), place, value)), "utf-8")
    done = call(walk, path)
    assert done.returncode == 1
    assert message in done.stderr


JSON = [
    ('{"a": 1, "a": 1}', "a name twice"),
    ('{"a": 1, "\\u0061": 1}', "a name twice"),
    ('{"a": 1.0}', "not a whole number"),
    ('{"a": 1e3}', "not a whole number"),
    ('{"a": 01}', "not a whole number"),
    ('{"a": NaN}', "not a value"),
    ('{"a": "\\ud800"}', "not a string in UTF-8"),
    ('{"a": "\\x"}', "not a string in UTF-8"),
    ('{"a": "\t"}', "not a string in UTF-8"),
    ('{"a": [1,]}', "not a value"),
    ('{"a": 1,}', "no name"),
    ('{"a" 1}', "no colon"),
    ("{} {}", "more after the end"),
    ("", "the text ends too early"),
    ("[" * 33 + "]" * 33, "nested too deeply"),
    ("{" + ", ".join(f'"{i}": 0' for i in range(129)) + "}", "too many names"),
    ("[]", "format (error 3)"),
    ("7", "format (error 3)"),
]


@pytest.mark.parametrize(("text", "message"), JSON, ids=[text[:24] for text, _ in JSON])
def test_c_reads_only_json(walk: Path, text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    done = call(walk, path)
    assert done.returncode == 1
    assert message in done.stderr


@pytest.mark.parametrize(
    "raw", [b'{"a": "\xff"}', b'{"a": "\xc0\x80"}', b'{"a": "\xed\xa0\x80"}', b'{"a": "\xe2\x82"}', b"\xef\xbb\xbf{}"]
)
def test_c_reads_only_utf8(walk: Path, raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(raw)
    assert "error 1" in call(walk, tmp_path / "plan.json").stderr


# ---- damage ---------------------------------------------------------------------------------------------------------

ROUNDS = 3000


@pytest.mark.long
@pytest.mark.parametrize("name", ["nested-rings", "packed-trees-rails"])
def test_damaged_files_under_sanitizers(fuzz: Path, name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = tmp_path / "plan.json"
    path.write_text(cases()[name].to_json("transfers"), encoding="utf-8")
    done = call(fuzz, path, request.config.getoption("--hypothesis-seed"), ROUNDS)
    assert done.returncode == 0, done.stderr
    opened, refused = (int(word) for word in done.stdout.split()[1::2])
    assert opened > 1  # a rate or a number for people may be exchanged
    assert refused > ROUNDS / 2


COUNTING = """
#include <stdio.h>
#include <stdlib.h>
#include "optcc_plan.h"
static unsigned long calls;
__attribute__((no_instrument_function)) void __cyg_profile_func_enter(void *f, void *c) { (void)f; (void)c; calls++; }
__attribute__((no_instrument_function)) void __cyg_profile_func_exit(void *f, void *c) { (void)f; (void)c; }
int main(int count, char **names) {
  static char text[1 << 24];
  FILE *file = fopen(names[count - 1], "rb");
  size_t length = fread(text, 1, sizeof text, file), room;
  optcc_error error;
  optcc_plan plan;
  optcc_node *nodes;
  int opened;
  fclose(file);
  room = optcc_plan_room(text, length, &error);
  nodes = (optcc_node *)malloc((room + 1) * sizeof *nodes);
  calls = 0;
  opened = optcc_plan_open(&plan, text, length, nodes, room, &error);
  printf("%d %lu %s\\n", opened, calls, error.what);
  free(nodes);
  return 0;
}
"""


def _many(ranks: int) -> str:
    """A plan of many ranks, of which the last half are leaves, with as many sections as members, all of one owner."""
    content = json.loads(cases()["nested-rings"].to_json("layout"))
    lowered = content["lowered"]
    lowered["ranks"] = [{"name": f"r{i}", "server": 0} for i in range(ranks)]
    half, ring = ranks // 2, lowered["channels"][0]
    ring |= {"members": list(range(half)), "leaves": list(range(half, ranks))}
    ring |= {"owners": [half - 1] * half, "via": [ranks - 1] * half}
    ring["segments"] = [{**ring["segments"][0], "cuts": [0] * half + [2000], "ordering": "leaf-first"}]
    lowered["channels"] = [ring]
    return json.dumps(content)


def test_opening_takes_work_in_proportion_to_the_file(tmp_path: Path) -> None:
    """Twice the ranks, sections, owners and leaves: twice the calls of the reader's functions, as they are counted."""
    (tmp_path / "count.c").write_text(COUNTING, encoding="utf-8")
    program = build("c", tmp_path / "count.c", tmp_path / "count", "-O0", "-finstrument-functions", "-fno-inline")
    calls = []
    for ranks in (2000, 4000):
        path = tmp_path / f"{ranks}.json"
        path.write_text(_many(ranks), encoding="utf-8")
        opened, count, *what = call(program, path).stdout.split()
        assert opened == "1", what
        calls.append(int(count))
    assert calls[0] > 2000
    assert calls[1] < 2.2 * calls[0]


def test_a_rank_of_another_list_owns_nothing(walk: Path, tmp_path: Path) -> None:
    """A leaf as owner, a member as the one that adds last, and a member of the ring before."""
    content = json.loads(cases()["nested-rings"].to_json("layout"))
    path = tmp_path / "plan.json"
    for which, ring in enumerate(content["lowered"]["channels"]):
        leaves, members = ring["leaves"], ring["members"]
        wrong = [("owners", leaf) for leaf in leaves] + [("via", member) for member in members if leaves]
        for name, rank in wrong:
            path.write_text(again(bent(content, ("lowered", "channels", which, name, 0), rank)), encoding="utf-8")
            done = call(walk, path)
            assert (done.returncode, f"{name} (error 5)" in done.stderr) == (1, True), (name, rank)


FORGOTTEN = [
    ("the end of the text", "  while (at < length && text[at] != '\"') {", "  while (text[at] != '\"') {"),
    ("the end of a list", " || i >= (int64_t)node->size", ""),
    ("the largest number", "if (*value > (INT64_MAX - digit) / 10)", "if (0)"),
]


@pytest.mark.parametrize(("what", "check", "without"), FORGOTTEN, ids=[what for what, _, _ in FORGOTTEN])
def test_a_check_that_is_forgotten_is_noticed(what: str, check: str, without: str, tmp_path: Path) -> None:
    header = (INCLUDE / "optcc_plan.h").read_text(encoding="utf-8")
    assert header.count(check) == 1
    (tmp_path / "optcc_plan.h").write_text(header.replace(check, without), encoding="utf-8")
    broken = build("c", FUZZ, tmp_path / "fuzz", *SANITIZERS, include=tmp_path)
    path = tmp_path / "plan.json"
    path.write_text(cases()["nested-rings"].to_json("transfers"), encoding="utf-8")
    done = call(broken, path, 1, ROUNDS)
    assert done.returncode != 0
    assert "AddressSanitizer" in done.stderr or "runtime error" in done.stderr
    assert "optcc_plan.h" in done.stderr


def test_a_warning_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "bad.c").write_text('#include "optcc_plan.h"\nint main(void) { int x; return 0; }\n', encoding="utf-8")
    with pytest.raises(AssertionError, match="unused variable"):
        build("c", tmp_path / "bad.c", tmp_path / "bad")
