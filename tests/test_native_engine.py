"""The native engine: real schedules over virtual NICs that fail, from seeds; its folds; peers that lie; mutants."""

from __future__ import annotations

import ctypes
import faulthandler
import re
import subprocess
import sys
from collections.abc import Iterator
from ctypes import byref
from fractions import Fraction
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import optcc
from optcc.errors import InputError
from optcc.planner.search import slower_s
from optcc.runtime.devices import host
from optcc.runtime.devices.host import BFLOAT16, Array, Op, dtype_of
from optcc.runtime.native.library import COUNTERS, OPS, TYPES, WireState
from optcc.schedule.recipe import Costs
from optcc.values.cluster import Cluster
from tests import native_replay as native
from tests.effort import cases
from tests.native_build import LOOSE, NATIVE, Mutant, build
from tests.native_replay import RIGHT, Ground, Outcome, World, clusters, grounds, load, plans, play, script

pytestmark = pytest.mark.cc


# --- whole runs ----------------------------------------------------------------------------------------------------


def test_every_seed_ends_with_the_right_bits(lib: Any) -> None:
    """Every kind of fault and many families come; segments are sent again; wires are left, and return."""
    total = dict.fromkeys(COUNTERS, 0)
    scripts = []
    for seed in range(cases(10_000)):
        outcome = play(lib, seed)
        assert not outcome.fault, f"{outcome.fault}; python -m tests.native_replay {seed}"
        for name, value in outcome.counters.items():
            total[name] += value
        scripts.append(script(seed))
    assert {fault[1] for one in scripts for fault in one.faults} == set(range(native.RESUME + 1))
    assert len({task[0] for one in scripts for task in one.tasks}) >= 6
    assert {one.ground.name for one in scripts} == set(clusters())
    assert not total.pop("refused")
    assert all(value > 20 for value in total.values()), total


def test_where_a_rank_is_killed_all_others_end(lib: Any) -> None:
    results = set()
    for seed in range(cases(2000)):
        outcome = play(lib, seed, doomed=True)
        assert not outcome.doomed_fault, f"{outcome.doomed_fault}; python -m tests.native_replay --doomed {seed}"
        results.add(outcome.result)
    assert results == {"ok", "lost"}


def test_a_seed_is_played_again_to_the_bit(lib: Any) -> None:
    for seed in range(10):
        assert play(lib, seed) == play(lib, seed)


def test_the_page_has_the_table_of_states() -> None:
    """Its columns are the events in their order; a cell is empty where the C has no rule."""
    code = (NATIVE / "flow.c").read_text(encoding="utf-8")
    (events,) = re.findall(r"enum \{ (SILENT, .*), EVENTS \};", code)
    rules = re.findall(r"^    \[OPTCC_(\w+)\] = \{(.*)\},$", code, re.MULTILINE)
    page = (native.ROOT / "docs" / "native-engine.md").read_text(encoding="utf-8").partition("## A wire")[2]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    told = {state.upper(): [cell != "-" for cell in cells] for state, *cells in lines[2:]}
    assert told == {state: [f"[{event}]" in said for event in events.split(", ")] for state, said in rules}


# --- time ----------------------------------------------------------------------------------------------------------

LARGE = 1 << 24
SEGMENT, WINDOW = 1 << 14, 1 << 18
ALPHA_NS = 5000


def ratio(lib: Any, ground: Ground, schedule: Any) -> float:
    """The engine's virtual time over that by which the planner chooses, without faults and without the heads of frames,
    which take about one per cent at this length of segments."""
    with World(lib, ground, {"seed": 1, "latency_ns": ALPHA_NS}, segment=SEGMENT, window=WINDOW) as world:
        given = [np.zeros(LARGE // 8, np.int64) for _ in range(schedule.ranks)]
        world.task(schedule, "int64", Op.SUM, given, given)
        outcome = world.run(world.return_ns)
    assert not outcome.fault
    assert outcome.counters["doubts"] == outcome.counters["resent_segments"] == 0
    frames = native.segments(schedule, ground.lanes(schedule), SEGMENT)
    heads = 1 + ctypes.sizeof(native.Frame) * frames / int(schedule.length.sum())
    return outcome.now_ns / 1e9 / slower_s(schedule, Costs(Fraction(ALPHA_NS, 10**9), Fraction(0))) / heads


@pytest.mark.parametrize("name", clusters())
def test_the_planners_choice_takes_the_simulated_time(lib: Any, name: str) -> None:
    """What is left is the last segment of a row, for which some NICs do not wait and others have to."""
    plan = optcc.plan(clusters()[name], LARGE, segments=16)
    found = ratio(lib, Ground(name, [(plan.recipe.family, plan.schedule())]), plan.schedule())
    assert 0.97 < found < 1.035, plan.recipe.family


@pytest.mark.long
@pytest.mark.parametrize("name", clusters())
def test_other_families_take_about_the_simulated_time(lib: Any, name: str) -> None:
    """What many ranks send to one at once depends on whose turn it is there; a ring that is not cut by rates takes
    half, since free NICs pull; where all send all they have to all, turns count for most."""
    made = [(plan.recipe.family, plan.schedule()) for plan in plans(clusters()[name], LARGE, 16)]
    ground = Ground(name, made)
    for family, schedule in made:
        most = 1.2 if family == "whole-vectors" else 1.15
        assert (0.45 if family == "ring" else 0.9) < ratio(lib, ground, schedule) < most, family


# --- one fault, looked at closely ----------------------------------------------------------------------------------


def ground_of(name: str) -> Ground:
    return next(one for one in grounds() if one.name == name)


def one(
    lib: Any, name: str, *faults: tuple[float, int, int, int, int], tasks: int = 1, **weather: int
) -> tuple[Outcome, World, dict[tuple[int, int], Any]]:
    """A run of the ground's first schedule; times of faults in `suspect_ns`. Also how its wires were at the end, by
    rank and index."""
    ground = ground_of(name)
    with World(lib, ground, {"seed": 7, "latency_ns": 2000, **weather}) as world:
        _, schedule = ground.schedules[0]
        for _ in range(tasks):
            world.task(schedule, "float32", Op.SUM, *RIGHT.of(schedule, "float32", Op.SUM))
        for at, *fault in faults:
            world.fault(at * world.suspect_ns, *fault)
        outcome = world.run(20 * world.return_ns)
        wires: dict[tuple[int, int], Any] = {}
        for rank, engine in enumerate(world.engines):
            for wire in count():
                state = WireState()
                if lib.optcc_wire_look(engine, wire, byref(state)) != native.OK:
                    break
                wires[rank, wire] = state
    return outcome, world, wires


@pytest.mark.parametrize("mute", [1, 2, 3])
def test_a_nic_that_goes_silent_costs_a_bounded_time(lib: Any, mute: int) -> None:
    healthy, _, _ = one(lib, "4 x 2, one at a third")
    for nic in (0, 1):
        struck, world, _ = one(lib, "4 x 2, one at a third", (0.001, native.MUTE, 0, nic, mute))
        assert not struck.fault
        assert struck.counters["left"] > 0
        # Noticed by the sender and, with what comes back by it, by the receiver: one look late each.
        assert struck.now_ns < 3 * healthy.now_ns + 4 * world.suspect_ns


def test_a_peer_that_pauses_costs_no_nic_and_no_byte(lib: Any) -> None:
    outcome, _, _ = one(lib, "4 x 8, two dead", (0.001, native.PAUSE, 1, 0, 0), (40, native.RESUME, 1, 0, 0))
    assert not outcome.fault
    assert outcome.counters["doubts"] > 0
    assert outcome.counters["left"] == outcome.counters["resent_segments"] == 0


def test_a_job_that_is_stopped_as_a_whole_goes_on(lib: Any) -> None:
    """For longer than a peer may be silent: who was away himself knows nothing about the others. One had not begun."""
    stop = [(5 * (rank < 3), native.PAUSE, rank, 0, 0) for rank in range(4)]
    resume = [(300 + 2 * rank, native.RESUME, rank, 0, 0) for rank in range(4)]
    outcome, _, _ = one(lib, "4 x 8, two dead", *stop, *resume)
    assert not outcome.fault
    assert outcome.counters["left"] == 0


@pytest.mark.parametrize("told", [0, 1])
def test_a_nic_that_returns_is_used_again(lib: Any, told: int) -> None:
    strike = ((0.01, native.DIE, 0, 0, told), (0.5, native.RETURN, 0, 0, told))
    outcome, _, wires = one(lib, "3 x 2", *strike, (0.02, native.MUTE, 0, 1, 3), (30, native.UNMUTE, 0, 1, 0), tasks=3)
    assert not outcome.fault
    returned = [state for state in wires.values() if state.epoch > 1]
    assert returned
    assert any(state.acked_bytes > 16384 for state in returned)


def test_the_last_nic_is_waited_for_and_no_longer_than_agreed(lib: Any) -> None:
    outcome, _, _ = one(lib, "2 x 1", (0.01, native.DIE, 1, 0, 1), (60, native.RETURN, 1, 0, 0))
    assert not outcome.fault
    assert outcome.counters["returned"] == 2
    gone, world, _ = one(lib, "2 x 1", (0.01, native.DIE, 1, 0, 1))
    assert gone.result == "lost"
    assert gone.now_ns < world.return_ns + 2 * world.suspect_ns


def test_a_dead_rank_ends_the_collective_everywhere(lib: Any) -> None:
    for name in ("4 x 1, one at half", "8 x 2, one dead"):
        for rank in range(3):
            outcome, world, _ = one(lib, name, (0.005, native.KILL, rank, 0, 0))
            assert outcome.result == "lost"
            assert not outcome.wrong
            assert not outcome.touched
            assert outcome.now_ns < world.return_ns + 5 * world.suspect_ns


def test_shares_follow_measured_rates(lib: Any) -> None:
    """One NIC of a rank goes on at a quarter of its rate, and nobody says so."""
    cluster = Cluster.uniform(servers=2, nics=2, rate=native.RATE_OF_A_NIC)
    ground = native.ground("2 x 2", cluster, 1 << 20, 8)
    _, schedule = ground.schedules[0]
    with World(lib, ground, {"seed": 1, "latency_ns": 500}, segment=2048, window=16384) as world:
        world.task(schedule, "int32", Op.SUM, *RIGHT.of(schedule, "int32", Op.SUM))
        world.fault(0, native.RATE, 0, 1, 250_000)
        assert not world.run(world.return_ns).fault
        carried = [0, 0]
        for wire, (mine, _) in enumerate(ground.wires[0, 1]):
            state = WireState()
            lib.optcc_wire_look(world.engines[0], wire, byref(state))
            carried[mine] += state.acked_bytes
    assert 0.15 < carried[1] / sum(carried) < 0.25


def under_way(lib: Any, ground: Ground, window: int) -> int:
    """The most bytes that rank 0 has on their way to the one NIC of rank 1, by all of its own: looked at many times."""
    _, schedule = ground.schedules[0]
    most = 0
    with World(lib, ground, {"seed": 1, "latency_ns": 500}, segment=2048, window=window) as world:
        world.task(schedule, "int32", Op.SUM, *RIGHT.of(schedule, "int32", Op.SUM))
        for limit_ns in range(20_000, 2_000_000, 20_000):
            world.run(limit_ns)
            flying = 0
            for wire in range(len(ground.wires[0, 1])):
                state = WireState()
                lib.optcc_wire_look(world.engines[0], wire, byref(state))
                flying += state.flying
            most = max(most, flying)
    return most


def test_a_window_is_the_far_nics(lib: Any, tmp_path: Path) -> None:
    """Three NICs that send to one have no more under way than one has; where each has a window, they have."""
    cluster = Cluster.uniform(servers=2, nics=3, rate=native.RATE_OF_A_NIC)
    ground = native.ground("3 to 1", cluster.degrade("server1/nic1").degrade("server1/nic2"), 1 << 20, 8)
    assert len({far for _, far in ground.wires[0, 1]}) == 1 < len(ground.wires[0, 1])
    assert 4096 < under_way(lib, ground, 8192) <= 8192
    wrong = Mutant("flow.c", "uint64_t heads = p->heading_for[far];", "uint64_t heads = w->flying;")
    assert under_way(load(build(tmp_path, wrong.planted(tmp_path))), ground, 8192) > 8192


# --- processes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "lanes"), [("2 x 1", 1), ("4 x 2, one at a third", 2)])
def test_processes_share_memory(lib: Any, name: str, lanes: int) -> None:
    """Rings that are full again and again: a buffer is several times as long."""
    plan = optcc.plan(clusters()[name], 3 << 20, segments=4)
    schedule = plan.schedule()
    given = native.inputs(schedule, "float32", Op.SUM, 3)
    right = [native.expected(schedule, given, Op.SUM)]
    right.append(native.expected(schedule, right[0], Op.SUM))
    memory = native.share(lib, schedule.ranks, lanes, ring=512 << 10)

    def rank_of(rank: int) -> None:
        buffer = given[rank].copy()

        def calls() -> Iterator[Array]:
            for call in right:
                yield buffer
                assert buffer.tobytes() == call[rank].tobytes()

        where = ctypes.addressof(memory)
        native.run_shared(lib, where, schedule, rank, calls(), Op.SUM, lanes=lanes, ring=512 << 10)

    ranks = [get_context("fork").Process(target=rank_of, args=(rank,)) for rank in range(schedule.ranks)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    assert [rank.exitcode for rank in ranks] == [0] * schedule.ranks


# --- folds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", list(Op))
@pytest.mark.parametrize("dtype", TYPES)
def test_folds_have_the_bits_of_the_runtimes(lib: Any, dtype: str, op: Op) -> None:
    kind = dtype_of(dtype)
    draw = np.random.default_rng(5)
    own = draw.integers(0, 256, 20_000 * kind.itemsize, np.uint8).view(kind)
    landed = draw.integers(0, 256, 20_000 * kind.itemsize, np.uint8).view(kind)
    if kind.kind == "f" or kind == BFLOAT16:
        bits = f"u{kind.itemsize}"
        infinity = host.infinity_of(kind)
        step = infinity & -infinity
        sign = 1 << 8 * kind.itemsize - 1
        ones = [0, 1, 2, step - 1, step, step + 1, infinity - 1, infinity, infinity + 1, infinity | step >> 1, sign - 1]
        ones += [infinity // 2 // step * step + offset for offset in (-step, 0, 1, step, step // 2)]
        ones += [one | sign for one in ones]
        special = np.array(ones, np.uint64).astype(bits)
        own = np.concatenate([own, np.repeat(special, len(special)).view(kind)])
        landed = np.concatenate([landed, np.tile(special, len(special)).view(kind)])
        near = (draw.integers(0, 1 << 12, 4000) * (step // 64 or 1)).astype(bits).view(kind)  # close to zero
        own, landed = np.concatenate([own, near]), np.concatenate([landed, near[::-1]])
    right = own.copy()
    host.fold(op, right, landed)
    lib.optcc_fold(TYPES.index(dtype), OPS.index(op), own.ctypes.data, landed.ctypes.data, len(own))
    wrong = np.flatnonzero(own.view(np.uint8) != right.view(np.uint8))
    assert not len(wrong), (own.view(np.uint8)[wrong[:4]], right.view(np.uint8)[wrong[:4]])


# --- what is refused -----------------------------------------------------------------------------------------------


def test_rows_that_a_rank_cannot_run_are_refused(lib: Any) -> None:
    ground = ground_of("3 x 2")
    _, schedule = ground.schedules[0]
    with World(lib, ground, {"seed": 1}) as world:
        for broken in (
            schedule.replace(length=schedule.length * 0),
            schedule.replace(length=schedule.length + 1),
            schedule.replace(offset=schedule.offset + schedule.nbytes),
            schedule.replace(offset=schedule.offset - schedule.nbytes),
            schedule.replace(dep_idx=schedule.dep_idx * 0 + len(schedule)),
            schedule.replace(dep_idx=schedule.dep_idx[::-1].copy()),
        ):
            refused = 0
            for rank in range(schedule.ranks):
                try:
                    world.program(broken, rank)
                except InputError:
                    refused += 1
            assert refused
        whole = schedule.replace(length=schedule.length - 1)
        (buffer, _) = native.inputs(schedule, "int32", Op.SUM, 1)[:2]
        cut = native.call(buffer, "int32", Op.SUM)
        assert lib.optcc_begin(world.engines[0], world.program(whole, 0), cut) == native.BAD, "elements would be cut"


def test_a_liar_is_not_believed(lib: Any) -> None:
    assert native.fuzz(lib, cases(100_000), seed=1) == ""


def test_what_a_peer_scribbles_into_shared_memory_does_no_harm(lib: Any) -> None:
    native.scribble(lib, cases(1000), seed=1)


@pytest.mark.long
def test_sanitizers_find_nothing() -> None:
    command = [sys.executable, "-m", "tests.native_replay", "--sanitize", "--fuzz", "20000"]
    command += map(str, range(50))
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=native.ROOT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


# --- mutants: every one of these bugs must be found by some seed, or by what the liar says --------------------------


MUTANTS = {
    "what has landed is taken again": Mutant(
        "flow.c", "if (f->seq < p->floor || (near && (p->landed[place / 64] | p->taking[place / 64]) & mark))", "if (0)"
    ),
    "a segment is taken under two numbers": Mutant("program.c", "|| bit(p->came, r->bits + *segment) ?", "?"),
    "a segment may be as long as it likes": Mutant(
        "program.c", "head->length != segment_length(r->length, r->cut, *segment) ||", ""
    ),
    "one too many is acknowledged": Mutant("flow.c", ".floor = p->floor}", ".floor = p->floor + 1}"),
    "what a lost wire carried is forgotten": Mutant(
        "flow.c", "o->is == FLYING && o->wire == w->index)", "o->is == FLYING && o->wire == w->index && 0)"
    ),
    "folds as they come": Mutant("program.c", "r->beside || r->before ? EARLY : IN_PLACE", "IN_PLACE"),
    "what lands beside is summed up from above": Mutant(
        "program.c", "rows->src[r->row] < rank", "rows->src[r->row] > rank"
    ),
    "a send reads the input, whatever it has waited for": Mutant(
        "program.c", "p->send[s].sum = sum;", "p->send[s].sum = g->input;"
    ),
    "what came early is not folded": Mutant("program.c", "if (bit(p->kept, r->bits + s))", "if (0)"),
    "a row is sent before all that it waits for": Mutant("program.c", "--s->waits == 0)", "--s->waits <= 1)"),
    "the window does not open again": Mutant(
        "flow.c", "[w->ends.far_nic] -= o->length;", "[w->ends.far_nic] -= o->length / 2;"
    ),
    "the buffer is given back before the NIC has read it": Mutant("flow.c", "if (e->in_hand)\n        return;\n", ""),
    "a fence gives nothing back": Mutant("flow.c", "    given_back(e, w, w->in_hand);\n    note", "    note"),
    "sends before the peer has begun": Mutant("flow.c", "if (p->far_begun < p->begun ||", "if ("),
    "a life is asked for that is over": Mutant("flow.c", "w->knocked = w->epoch + 1;", "w->knocked = w->epoch;"),
    "an answer clears no doubt": Mutant("flow.c", "[ANSWERED] = answered, ", ""),
    "a silent wire is never left": Mutant("flow.c", "[OVERDUE] = leave, ", ""),
    "a reported death is not heard": Mutant("flow.c", "case OPTCC_DIED:", "case 99:"),
}


def find(library: Path, seeds: int) -> None:
    lib = load(library)
    faulthandler.disable()
    sys.exit(any(play(lib, seed).fault for seed in range(seeds)) or native.fuzz(lib, 5000, seed=1) != "")


def tried(library: Path, seeds: int) -> int | None:
    """How `find` ends: it may crash, which finds a bug, too. None: it hangs."""
    grounds()
    child = get_context("fork").Process(target=find, args=(library, seeds))
    child.start()
    child.join(300)
    return child.exitcode


QUICK = (
    "folds as they come",
    "what lands beside is summed up from above",
    "what a lost wire carried is forgotten",
    "the window does not open again",
)
"""The others are tried in the long tests."""


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in MUTANTS]
)
def test_a_mutant_is_found(name: str, tmp_path: Path) -> None:
    """The rarest shows in one of 750 seeds."""
    assert tried(build(tmp_path, MUTANTS[name].planted(tmp_path), LOOSE), 4000)


def test_without_a_mutant_nothing_is_found(tmp_path: Path) -> None:
    assert tried(build(tmp_path), 20) == 0
