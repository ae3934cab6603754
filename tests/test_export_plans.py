"""Exports of rings and nested rings: what is written can be read back, and computes AllReduce by the target's rules."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

import optcc
from optcc.cli import main
from optcc.errors import InputError
from optcc.export import formats, mscclpp, mscclpp_file, mscclpp_run, sends
from optcc.export.chunks import chunked, deeper, finer, keeps_segments
from optcc.plans.files import save_plan
from optcc.plans.plan import Plan
from optcc.schedule.ring import NicSpread, PlainRing
from optcc.simulation.verifier import verify
from optcc.values.cluster import Cluster
from tests.conftest import degraded
from tests.plan_cases import NAMES
from tests.plan_cases import cases as plans_of_every_family

MIB = 2**20


@cache
def plan(ranks: int, weak: int, segments: int = 1) -> Plan:
    """`weak` of the servers have 0.37 of one of their two NICs left, so that no share is a round number."""
    cluster = Cluster.uniform(servers=ranks, nics=2, rate=25 * 10**9)
    for server in range(weak):
        cluster = cluster.degrade(f"server{server}/nic0", 0.37)
    return optcc.plan(cluster, 64 * MIB, segments=segments)


@cache
def ring(ranks: int, weak: int = 1, segments: int = 2) -> Plan:
    return replace(plan(ranks, weak), recipe=PlainRing(segments, NicSpread.RATE))


PLANS = {
    f"{kind} of {ranks}": make
    for ranks in (4, 8, 16)
    for kind, make in (
        ("ring", lambda ranks=ranks: ring(ranks)),
        ("nested rings, 1 degraded,", lambda ranks=ranks: plan(ranks, 1)),
        ("nested rings, 3 degraded,", lambda ranks=ranks: plan(ranks, 3)),
    )
}


FEW = [pytest.param(name, marks=pytest.mark.long) if "nested rings" in name and "4" not in name else name
       for name in PLANS]  # fmt: skip


@pytest.mark.parametrize("name", FEW)
def test_mscclpp(name: str) -> None:
    chosen = mscclpp.export(PLANS[name]())
    program, rounded = chosen.program, chosen.rounded
    again = mscclpp_file.load(mscclpp_file.dump(program))
    assert again == program
    mscclpp_file.check_limits(again)
    assert mscclpp_run.run(again).operations >= 2 * len(rounded.moves)
    assert max(move.start + move.count for move in rounded.moves) == program.chunks


@pytest.mark.parametrize("name", [name for name in PLANS if "16" not in name])
def test_chakra(name: str) -> None:
    from optcc.export import chakra

    made = PLANS[name]()
    files = [chakra.load(content) for content in chakra.export(made)]
    assert [chakra.dump(list(nodes)) for nodes in files] == list(chakra.export(made))
    assert sends.run(files).operations == 2 * len(made.schedule())
    sent = sum(node.nbytes for nodes in files for node in nodes if node.sends)
    assert sent == made.schedule().length.sum()


def test_without_protobuf(monkeypatch: pytest.MonkeyPatch) -> None:
    from optcc.export import chakra

    chakra.messages.cache_clear()
    for name in [name for name in sys.modules if name.startswith("google.protobuf")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    assert "extra chakra" in str(refused(lambda: chakra.export(plan(4, 1))).hint)


def gpu_plan() -> Plan:
    cluster = Cluster.uniform(servers=2, nics=2, gpus=2, rate=25 * 10**9, nvlink_rate=2 * 10**11)
    return optcc.plan(replace(cluster.degrade("server0/nic0", Fraction(1, 2)), gpu_ranks=True), MIB, segments=1)


def test_memory_channels_inside_servers_and_port_channels_between() -> None:
    made = gpu_plan()
    server = [rank.server for rank in made.cluster.ranks]
    program = mscclpp.export(made).program
    used = set()
    for rank, gpu in enumerate(program.gpus):
        for kind, peers in gpu.channels.items():
            assert all((server[peer] == server[rank]) == (kind == "memory") for peer in peers)
            used |= {kind} if peers else set()
    assert used == {"memory", "port"}
    mscclpp_run.run(program)


@given(cluster=degraded(min_ranks=2, max_ranks=5, most=3), segments=st.integers(1, 3))
@settings(max_examples=10)
def test_any_degraded_cluster(cluster: Cluster, segments: int) -> None:
    made = optcc.plan(cluster, MIB, segments=segments)
    program = mscclpp.export(made, chunks=256).program
    mscclpp_run.run(program)


@pytest.mark.parametrize("family", ["trees", "packed-trees"])
def test_other_families(family: str) -> None:
    cluster = Cluster.uniform(servers=4, nics=1, rate=10**9).degrade("server0/nic0", 0.5)
    made = optcc.plan(cluster, MIB, family=family, segments=2)
    mscclpp_run.run(mscclpp.export(made).program)


# Rounding


def test_more_chunks_lose_less() -> None:
    made = plan(8, 1, 2)
    ratios = [chunked(made, chunks=n).ratio for n in (16, 256, 4096)]
    assert ratios[0] > ratios[1] > ratios[2] >= 1
    assert ratios[2] < Fraction(1005, 1000)


@pytest.mark.parametrize("name", NAMES)
def test_another_depth_is_the_same_for_a_plan_that_was_read(name: str) -> None:
    made = plans_of_every_family()[name]
    other = deeper(Plan.from_bytes(made.to_bytes()), 3)
    verify(other.schedule())
    assert (other.family, other.segments) == (made.family, 3)
    assert other == deeper(made, 3) != made


def test_chosen_chunks_are_as_good_as_any() -> None:
    made = plan(4, 3)
    chosen = chunked(made, unit=16)
    every = [chunked(made, chunks=2**n, unit=16) for n in range(2, 13)]
    assert chosen.ratio <= Fraction("1.0021") * min(one.ratio for one in every)
    assert chosen.simulated_ratio <= 1.01 * min(one.simulated_ratio for one in every)
    assert keeps_segments(chosen)
    assert chosen.ratio >= 1
    assert chosen.simulated_ratio >= float(chosen.ratio)


def test_moves_of_different_groups_do_not_touch() -> None:
    made = chunked(plan(8, 3), chunks=1024)
    owner: dict[int, int] = {}
    for move in made.moves:
        for chunk in range(move.start, move.start + move.count):
            assert owner.setdefault(chunk, move.group) == move.group
    assert set(owner) == set(range(1024))


def test_finer_groups_carry_the_same_chunks() -> None:
    made = chunked(plan(4, 3), chunks=64)
    cut = finer(made, 3) or made
    assert cut is made  # 3 does not divide the buffer
    cut = finer(made, 4, 16) or made
    assert cut.groups == 4 * made.groups
    factor = cut.chunks // made.chunks
    assert sum(m.count for m in cut.moves) == factor * sum(m.count for m in made.moves)
    owner: dict[int, int] = {}
    for move in cut.moves:
        for chunk in range(move.start, move.start + move.count):
            assert owner.setdefault(chunk, move.group) == move.group
    assert finer(made, 2**20) is None


def refused(call: Callable[[], object]) -> InputError:
    with pytest.raises(InputError) as caught:
        call()
    return caught.value


@pytest.mark.long
def test_over_a_limit_is_refused_by_name() -> None:
    error = refused(lambda: mscclpp.export(plan(16, 3, 24), segments=24, chunks=4096))
    assert "operations of a rank" in str(error)
    assert "--segments" in str(error.hint)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [4, 8])
def test_the_number_of_segments_in_the_hint_fits(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the most that fit: one more does not."""
    made, export = plan(ranks, 3, 1), mscclpp.export
    monkeypatch.setattr(mscclpp, "PHASES", 0)  # few threadblocks are enough to see what fits
    advised = str(refused(lambda: export(made, segments=64)).hint)
    most = int(advised.removeprefix("Try --segments ").rstrip("."))
    assert keeps_segments(export(made, segments=most).rounded)
    assert "over a limit" in str(refused(lambda: export(made, segments=most + 1)))


def test_where_no_number_of_segments_fits_none_is_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mscclpp_file, "MAX_OPS", 1)
    assert "No number of segments fits" in str(refused(lambda: mscclpp.export(plan(4, 1, 4))).hint)


def test_segments_that_were_asked_for_are_kept_or_refused() -> None:
    assert mscclpp.export(plan(4, 1, 8), segments=4).rounded.plan.segments == 4
    few = refused(lambda: mscclpp.export(plan(4, 1, 8), segments=8, chunks=4))
    assert (few.where, "4 equal chunks" in str(few.expected)) == ("--segments", True)


def test_threadblocks_that_were_asked_for() -> None:
    made, export = ring(4), mscclpp.export
    few, many = export(made, threadblocks=2), export(made, threadblocks=8)
    assert few.seconds is not None
    assert many.seconds is not None
    assert 1 <= few.threadblocks <= 2
    assert few.threadblocks <= many.threadblocks <= 8
    assert many.seconds <= few.seconds * mscclpp.SLACK
    assert "at least 1" in str(refused(lambda: export(made, threadblocks=0)))
    tight = refused(lambda: export(plan(4, 3, 16), segments=16, threadblocks=1))
    assert "threadblocks" in str(tight) or "in threadblock 0" in str(tight)


def test_what_cannot_be_cut_is_refused() -> None:
    odd = optcc.plan(plan(4, 1).cluster, 1000, segments=1)
    assert refused(lambda: mscclpp.export(odd)).expected == "a multiple of 16 bytes"
    assert "--chunks 256" in str(refused(lambda: mscclpp.export(plan(4, 1), chunks=300)))
    alone = optcc.plan(Cluster.uniform(servers=1, nics=1, rate=10**9), MIB)
    assert "nothing to export" in str(refused(lambda: mscclpp.export(alone)))
    huge = optcc.plan(plan(4, 1).cluster, 8 * 2**30, segments=1)
    assert "bytes per rank" in str(refused(lambda: mscclpp.export(huge)))


# The command


def call(*args: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args])


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    save_plan(plan(4, 1, 2), tmp_path / "plan.json")
    return tmp_path / "plan.json"


@pytest.mark.parametrize("name", formats.FORMATS)
def test_the_command(plan_file: Path, name: str) -> None:
    target = plan_file.with_name("out")
    if name == "goal":  # which knows NICs of one rate only
        save_plan(optcc.plan(plan(4, 0).cluster.degrade("server0/nic0"), 64 * MIB, segments=2), plan_file)
    done = call("export", plan_file, "--format", name, "-o", target, "--json")
    assert done.exit_code == 0, done.output
    value: dict[str, Any] = json.loads(done.stdout)
    assert all(Path(path).stat().st_size for path in value["files"])
    assert len(value["files"]) == (4 if name == "chakra" else 1)
    assert value["operations"] > 0
    assert sorted(p.name for p in plan_file.parent.iterdir()) == sorted(
        [plan_file.name, *(Path(path).name for path in value["files"])]
    )
    if name == "mscclpp":
        assert 1 <= value["fluid_ratio"] <= value["simulated_ratio"]
        shown = call("export", plan_file, "--format", name, "-o", target, "--segments", 1)
        assert f"over the bound  {1:.1f}" in shown.stdout or "over the bound  1." in shown.stdout
        assert "1 segment deep" in shown.stdout


def test_the_command_exports_baselines(plan_file: Path) -> None:
    ours, ring_ = (
        json.loads(
            call("export", plan_file, "--format", "mscclpp", "-o", plan_file.with_name("out"), *args, "--json").stdout
        )
        for args in ((), ("--algorithm", "ring"))
    )
    assert ours["fluid_ratio"] < 1.01 < ring_["fluid_ratio"]


def test_the_command_refuses(plan_file: Path) -> None:
    nowhere = call("export", plan_file, "--format", "mscclpp", "-o", plan_file.parent / "no" / "out")
    assert (nowhere.exit_code, "folder that exists" in nowhere.stderr) == (2, True)
    chunks = call("export", plan_file, "--format", "perfetto", "-o", plan_file.with_name("out"), "--chunks", 4)
    assert (chunks.exit_code, "--chunks" in chunks.stderr) == (2, True)
    deep = call("export", plan_file, "--format", "mscclpp", "-o", plan_file.with_name("out"), "--segments", 0)
    assert (deep.exit_code, "segments" in deep.stderr) == (2, True)
    gone = call("export", plan_file, "--format", "msccl", "-o", plan_file.with_name("out"))
    assert (gone.exit_code, "'mscclpp', 'chakra', 'goal', 'perfetto'" in gone.stderr) == (2, True)
    assert not plan_file.with_name("out").exists()


def test_a_file_that_fails_its_proof_is_not_left_behind(plan_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = mscclpp.export(plan(4, 1)).program
    first = wrong.gpus[0]
    block = replace(first.threadblocks[0], ops=first.threadblocks[0].ops[:-2])
    broken = replace(wrong, gpus=(replace(first, threadblocks=(block, *first.threadblocks[1:])), *wrong.gpus[1:]))
    monkeypatch.setattr(mscclpp, "export", lambda *_, **__: (broken, mscclpp.chunked(plan(4, 1), chunks=4)))
    done = call("export", plan_file, "--format", "mscclpp", "-o", plan_file.with_name("out"))
    assert done.exit_code == 1
    assert [p.name for p in plan_file.parent.iterdir()] == [plan_file.name]
