"""The library of C code: built, loaded or refused; its structs are the header's; it keeps to what it is given."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import optcc
from optcc.cli.doctor import examine
from optcc.errors import InputError
from optcc.export import mscclpp_clock
from optcc.machine import native
from optcc.machine.native import NativeCode, Pointer, array, call, struct
from optcc.runtime.native import library as engine
from optcc.schedule import Schedule, matchings
from optcc.schedule.direct import DirectExchange
from optcc.schedule.matchings import assigned, cut, group_steps, in_order, starving_steps, steady_steps
from optcc.simulation import simulator
from optcc.simulation.faults import LONGEST_S, TICKS_PER_S, Fault
from optcc.simulation.simulator import NEVER, simulate
from optcc.theory import packing
from optcc.values.cluster import Cluster
from tests import native_build, planned
from tests.fabrics import gpu_cluster, pods_of
from tests.native_build import Mutant
from tests.native_replay import SANITIZERS

ROOT = Path(__file__).resolve().parents[1]
HEADER = (ROOT / "native" / "planning.h").read_text(encoding="utf-8")
STRUCTS = (
    *(
        matchings._Starving,
        matchings._Steady,
        matchings._Cuts,
        matchings._Rows,
        packing._Priced,
        mscclpp_clock._Threads,
    ),
    *(simulator._Work, simulator._Fabric, simulator._Times),
)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the library is looked for; nothing is there."""
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "liboptcc.so")
    native.library.cache_clear()
    yield tmp_path / "liboptcc.so"
    native.library.cache_clear()


def build(output: Path, **environ: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "native" / "build.py"), str(output)],
        env={**os.environ, **environ}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


# Found, or not.


def test_who_has_no_library_is_told_how_to_get_it(elsewhere: Path) -> None:
    with pytest.raises(InputError, match=r"no compiled code.*got 'no file'\. make setup.*pip install"):
        native.library()
    elsewhere.write_bytes(b"no library")
    with pytest.raises(InputError, match=r"no compiled code.*(invalid ELF header|file too short)"):
        native.library()
    (found,) = (part for part in examine() if part.part == "liboptcc")
    assert (found.present, found.get) == (False, native.WAY_OUT)


def test_a_library_of_another_version_is_refused(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(elsewhere, CFLAGS="-O0 -Werror")
    assert native.library().planning_abi() == native.ABI
    native.library.cache_clear()
    monkeypatch.setattr(native, "ABI", native.ABI + 1)
    with pytest.raises(InputError, match=f"expected interface {native.ABI}, got {native.ABI - 1}"):
        native.library()


def test_bounds_and_topologies_do_without_it(elsewhere: Path) -> None:
    cluster = optcc.load_topology("example:h100-8x400g", servers=4).cluster.degrade("server1/mlx5_0")
    assert optcc.lower_bound(cluster, 2**20).seconds > 0
    assert native.library.cache_info().misses == 0
    with pytest.raises(InputError, match="no compiled code"):
        optcc.plan(cluster, 2**20, alpha="5us")


def test_without_a_compiler_the_build_says_what_to_install(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "native" / "build.py"), str(tmp_path / "it.so")]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "install gcc and libc6-dev" in done.stderr


# The border.


def fields_of(name: str) -> list[str]:
    """The names of a struct's fields in the header, in order."""
    found = re.search(rf"^struct {name} {{\n(.*?)^}};", HEADER, re.M | re.S)
    assert found, name
    body = re.sub(r"/\*.*?\*/", "", found[1], flags=re.S)
    return [name for line in body.split(";") for name in re.findall(r"\*?(\w+)\s*(?:,|$)", line.strip())]


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda kind: kind.__name__)
def test_structs_are_those_of_the_header(kind: type[native.Struct]) -> None:
    assert list(kind.layout) == fields_of(kind.__name__)


def test_constants_are_those_of_the_header() -> None:
    assert list(mscclpp_clock._STEP.names or ()) == fields_of("timed_step")
    said = re.findall(r"^  PLANNING_(\w+) = (\d+)", HEADER, re.M)
    assert {name: int(value) for name, value in said} == {outcome.name: outcome.value for outcome in NativeCode}
    defined = dict(re.findall(r"#define (\w+) (?:INT64_C\()?(\d+)\)?", HEADER))
    assert int(defined["TICKS_PER_S"]) == TICKS_PER_S
    assert int(defined["LAST_TICK"]) == LONGEST_S * TICKS_PER_S
    assert int(defined["PLANNING_ABI"]) == native.ABI
    assert "#define NEVER_TICK (INT64_C(1) << 62)" in HEADER
    assert NEVER == 2**62


ENGINE_STRUCTS = {
    kind.__name__: kind
    for kind in vars(engine).values()
    if isinstance(kind, type) and issubclass(kind, ctypes.Structure) and kind is not ctypes.Structure
}
ENGINE_NUMBERS = {
    **{f"OPTCC_{each.name}": each.value for kind in (engine.ResultOf, engine.CauseOf, engine.WireOf) for each in kind},
    **{f"OPTCC_NOTE_{each.name}": each.value for each in engine.Noted},
    **{f"OPTCC_LINK_{each.name}": each.value for each in engine.LinkOf},
    **{f"OPTCC_{name.upper()}": value for names in (engine.TYPES, engine.OPS) for value, name in enumerate(names)},
    "OPTCC_TYPES": len(engine.TYPES),
    "OPTCC_OPS": len(engine.OPS),
    "OPTCC_MAX_NICS": engine.MAX_NICS,
    "OPTCC_MAX_LANES": engine.MAX_LANES,
    "OPTCC_TCP_SECRET": engine.TCP_SECRET_BYTES,
    "OPTCC_TCP_MAX_HANDLE": engine.TCP_HANDLE_BYTES,
}


def engine_differs(folder: Path, header: str) -> list[str]:
    """Where what Python knows of the native engine is not what this header says: sizes, fields, numbers."""
    (folder / "engine.h").write_text(header)
    said = [f'P("{name}", {name})' for name in ENGINE_NUMBERS]
    known = dict(ENGINE_NUMBERS)
    for name, kind in ENGINE_STRUCTS.items():
        said.append(f'P("{name}", sizeof(struct {name}))')
        known[name] = ctypes.sizeof(kind)
        for field, *_ in kind._fields_:
            said.append(f'P("{name}.{field}", offsetof(struct {name}, {field}))')
            known[f"{name}.{field}"] = getattr(kind, field).offset
    lines = "\n".join(f"{line};" for line in said)
    includes = '#include "engine.h"\n#include <stddef.h>\n#include <stdio.h>\n'
    (folder / "says.c").write_text(
        f'{includes}#define P(name, value) printf("%s %zu\\n", name, (size_t)(value))\nint main(void) {{\n{lines}\n}}\n'
    )
    subprocess.run(["cc", str(folder / "says.c"), "-o", str(folder / "says")], check=True, timeout=60)
    told = subprocess.run([folder / "says"], capture_output=True, text=True, check=True, timeout=60).stdout
    there = {name: int(number) for name, number in (line.split() for line in told.splitlines())}
    return [name for name in known if known[name] != there[name]]


@pytest.mark.cc
def test_python_knows_the_engine_as_its_header_says(tmp_path: Path) -> None:
    header = (ROOT / "native" / "engine.h").read_text(encoding="utf-8")
    assert len(ENGINE_STRUCTS) > 12
    assert engine_differs(tmp_path, header) == []
    for now, planted, found in (
        ("OPTCC_AGAIN = 1,", "OPTCC_AGAIN = 9,", "OPTCC_AGAIN"),
        ("OPTCC_PORT, ", "OPTCC_NEWS, OPTCC_PORT, ", "OPTCC_PORT"),
        ("uint64_t alone_ns;", "uint64_t other_ns, alone_ns;", "optcc_config"),
    ):
        assert header.count(now) == 1, now
        assert found in engine_differs(tmp_path, header.replace(now, planted))


def test_arrays_of_another_type_or_shape_are_refused() -> None:
    pair = struct("pair", {"count": int, "given": array(np.int64, "count+1"), "made": array(np.int64, 2, written=True)})
    right = {"given": np.arange(4), "made": np.zeros(2, np.int64)}
    assert pair(count=3, **right).count == 3
    fixed = np.zeros(2, np.int64)
    fixed.flags.writeable = False
    for wrong in (
        {"given": np.arange(4.0)}, {"given": np.arange(3)}, {"given": np.arange(8)[::2]},
        {"given": np.arange(4).reshape(2, 2)}, {"made": fixed},
    ):  # fmt: skip
        with pytest.raises(TypeError, match=r"given|made"):
            pair(count=3, **{**right, **wrong})
    assert isinstance(pair.layout["given"], Pointer)
    with pytest.raises(TypeError, match="gaps"):
        call("planning_assign", 2, 2, np.zeros((4, 2))[::2], np.zeros(2, np.int64))


def pinned(name: str) -> Schedule:
    """What the planner chooses for a case of `planned`."""
    cluster, _, *costs = next(case[1:] for case in planned.cases() if case[0] == name)
    return optcc.plan(cluster, 2**20, alpha=costs[0], per_chunk=costs[1]).schedule()


def hurt() -> Cluster:
    return Cluster.uniform(servers=4, nics=2, rate=10**9).degrade("server1/nic0")


def direct(cluster: Cluster) -> Schedule:
    return DirectExchange(4, "one-starves", last=Fraction(2, 5)).lower(cluster, 2**16)


def starving(**other: Any) -> Any:
    """Two steps of three ranks on one rail, of which the first starves and the second adds last."""
    square, cube = np.full((3, 3), 2**20), np.zeros((1, 3, 3), np.int64)
    given = {
        "lone": 0,
        "gap": 0,
        "cost": 0,
        "one": 2**20,
        "tie": 8,
        "slack": 2**12,
        "brief": 0,
        "longest": np.array([4, 4]),
        "starts": np.array([0, 8, 16]),
        "live": np.ones((1, 3), np.bool_),
        "late": np.array([1]),
        "part": cube,
        "begins": cube,
        "gaps": cube,
        "served": square * 0,
        **{name: square.copy() for name in ("raw", "needs", "left", "ties")},
    }
    return starving_steps(**{**given, **other})[0].tolist()


def steady(**other: Any) -> Any:
    """Likewise, of which the first two starve."""
    square = np.full((3, 3), 2**20)
    given = {
        "gap": 0,
        "cost": 0,
        "tie": 8,
        "slack": 2**12,
        "places": 2**20,
        "coarse": 24,
        "ends": np.array([0, 8, 16]),
        "rail": np.array([0, 5]),
        "live": np.ones((2, 3), np.bool_),
        "quiet": np.zeros(2, np.bool_),
        "hub": np.array([False, False, True]),
        "slow": np.array([0]),
        "sent": square * 0,
        **dict.fromkeys(("section", "weight", "ties"), square),
    }
    return steady_steps(**{**given, **other}).tolist()


def moved(**other: Any) -> Any:
    """A chunk of three ranks, of which the first adds last; two of them are a group."""
    given = {
        "apart": -1,
        "lands": 2,
        "half": 8,
        "unit": 4,
        "one_more": 2**32,
        "group": np.array([0, 0, 1]),
        "parent": np.array([[-1, 0, 1]]),
        "on": np.ones((2, 3), np.bool_),
        "uplink": np.array([1, -1]),
    }
    return group_steps(**{**given, **other}).tolist()


def test_numbers_beyond_their_tables_are_refused() -> None:
    schedule, one = direct(hurt()), np.zeros(1, np.int64)
    for wrong in (len(schedule), -1):
        waits = schedule.dep_idx.copy()
        waits[3] = wrong
        with pytest.raises(InputError, match="planning_simulate: a number beyond its table"):
            simulate(schedule.replace(dep_idx=waits))
        for at in ("src", "kind", "hub", "nic"):
            given = {name: one.copy() for name in ("src", "kind", "hub", "start", "stop", "key", "nic")}
            given[at] += 2**40 if wrong > 0 else wrong
            with pytest.raises(InputError, match="planning_due"):
                in_order(given, one, (one[:0], one[:0]), 1, 3)
        with pytest.raises(InputError, match="planning_due"):
            in_order(dict.fromkeys(given, one), one, (one, one + wrong), 1, 3)
    far, back = np.array([3]), np.array([0, 8, 4])
    for other in ({"lone": 3}, {"lone": -1}, {"late": far}, {"late": -far}, {"starts": back}, {"starts": back - 1}):
        with pytest.raises(InputError, match="planning_starving"):
            starving(**other)
    rails, none = -np.ones(2, np.int64), np.zeros((3, 3), np.int64)
    for some in ({"slow": far}, {"slow": -far}, {"ends": back}, {"rail": rails}, {"section": none}):
        with pytest.raises(InputError, match="planning_steady"):
            steady(**some)
    up = np.array([[-1, 0, 3]])
    for group in ({"apart": 3}, {"parent": up}, {"parent": up * 0 - 1}, {"group": far[[0, 0, 0]]}, {"lands": 0}):
        with pytest.raises(InputError, match="planning_grouped"):
            moved(**group)
    for parent in ([[-1, 2, 1]], [[-1, 0, 1]]):  # a circle, and nobody on the rails
        with pytest.raises(InputError, match=r"wait for ever|planning_grouped"):
            moved(parent=np.array(parent), on=np.zeros((2, 3), np.bool_))
    piece, slot = np.array([[0, 1, 0, 64]]), np.array([[5, 3, 2, 1], [9, 3, 4, 3]])
    assert cut(np.array([[0, 1, 1, 2, 7]]), piece, slot, (8, 64, 0, 1)).T.tolist() == [
        [0, 1, 12, 0, 1, 0, 16, 2, 0],
        [0, 1, 16, 0, 1, 16, 64, 4, 1],
    ]
    for pair in ([0, 1, 2, 2, 0], [0, 1, 1, 3, 0], [0, 1, -1, 2, 0]):
        with pytest.raises(InputError, match="planning_cut"):
            cut(np.array([pair]), piece, slot, (8, 64, 0, 1))
    tree, deepest = np.array([1, 2, 0], np.int32), ctypes.c_int64()
    assert call("planning_flatten", 3, tree, np.ones((3, 3)), 0.0, deepest) is NativeCode.NO_TREE
    assert call("planning_flatten", 3, tree + 9, np.ones((3, 3)), 0.0, deepest) is NativeCode.NO_TREE
    with pytest.raises(InputError, match="planning_assign"):
        assigned(np.array([[np.nan]]))
    with pytest.raises(MemoryError):
        call("planning_assign", 1, 2**61, one, one)


# What it finds, and that it touches nothing but its own: under the compiler's sanitizers, in a process of their own.


def cases() -> dict[str, object]:
    """Times of families on several fabrics, with faults and packets; matchings; packed trees; what is refused."""
    found: dict[str, object] = {}
    clusters = {"flat": hurt(), "pods": pods_of(hurt(), 2), "gpus": gpu_cluster(2, 2)}
    for name, cluster in clusters.items():
        bound = optcc.lower_bound(cluster, 2**16)
        plan = optcc.plan(cluster, 2**16, alpha="5us", per_chunk="1us")
        schedule, far = plan.schedule(), float(bound.seconds)
        nics = [port.name for port in schedule.ports if not port.nvlink]
        faults = [Fault(nics[-1], far / 3, Fraction(1, 2))]
        faults += [] if name == "gpus" else [Fault(nics[1], far / 2, detect_s=far / 20)]
        for receivers in ("packets", "stripes"):
            for some in ([], faults):
                run = simulate(schedule, receivers=receivers, service="ready", per_chunk="1us", faults=some)
                found[f"{name} {receivers} {len(some)}"] = [run.time_s.hex(), float(run.land_end.sum()).hex()]
        packed = packing.pack_trees(cluster)
        found[f"{name} packed"] = [str(packed.rate), packed.rounds, packed.columns]
    for name in ("direct", "two halves", "one", "rails, two halves", "pods"):
        lost = direct(hurt()) if name == "direct" else pinned(name)
        found[name] = simulate(lost).time_s.hex()
    found["steps"] = [starving(), steady(), moved()]
    random = np.random.default_rng(1)
    for most in (2, 2**40):
        for size in ((3, 5), (6, 6), (7, 2), (0, 2), (2, 0)):
            found[f"matching {most} {size}"] = assigned(random.integers(-most, most, size)).tolist()
    machine = mscclpp_clock.TimedThreads()
    links, counter, lock = [machine.resource(1e9), machine.resource(3e9)], machine.counter(), machine.lock()
    for thread in range(4):
        steps = machine.thread()
        for step in range(1, 5):
            steps.append(mscclpp_clock.TimedStep(counter, thread, lock, 1e-6, 1e4 * step, 4e8, *links, counter, 1e-6))
    found["clock"] = machine.seconds().hex()
    test_numbers_beyond_their_tables_are_refused()
    return found


SANITIZED = """
import json, sys
from pathlib import Path
from optcc.machine import native
native.LIBRARY = Path(sys.argv[1])
from tests import test_native
print(json.dumps(getattr(test_native, sys.argv[2])()))
"""


def watched(library: Path, function: str) -> subprocess.CompletedProcess[str]:
    """Call a function of this file with a library that has been built for the address sanitizer."""
    where = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout
    options = "detect_leaks=0:allocator_may_return_null=1"  # leaks: the interpreter's own
    return subprocess.run(
        [sys.executable, "-c", SANITIZED, str(library), function],
        env={**os.environ, "LD_PRELOAD": where.strip(), "ASAN_OPTIONS": options, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=600, check=False, cwd=ROOT,
    )  # fmt: skip


@pytest.mark.long
def test_nothing_is_read_or_written_beyond_its_arrays(tmp_path: Path) -> None:
    """And the results are those of the library that is installed, to the bit."""
    done = watched(native_build.build(tmp_path, flags=SANITIZERS), "cases")
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == json.loads(json.dumps(cases()))


def one_time() -> float:
    return simulate(direct(hurt())).time_s


@pytest.mark.long
def test_the_sanitizers_see_a_heap_that_is_too_small(tmp_path: Path) -> None:
    short = Mutant("simulate.c", "planning_zeroed(x->event_room, sizeof *x->events)", "calloc(1, sizeof *x->events)")
    done = watched(native_build.build(tmp_path, short.planted(tmp_path), SANITIZERS), "one_time")
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
