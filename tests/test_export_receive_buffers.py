"""Exports of plans with receive buffers: sums proved on the file, their bits, and files in which something is wrong."""

from __future__ import annotations

import json
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import optcc
from optcc.errors import VerifyError
from optcc.export import goal, mscclpp, mscclpp_clock, mscclpp_file, mscclpp_run, sends
from optcc.export.chunks import Chunked, chunked, finer
from optcc.export.formats import reader_of, write
from optcc.export.mscclpp_clock import MSCCLPP
from optcc.export.mscclpp_file import ChunkSpan, MscclppOp, MscclppProgram
from optcc.export.mscclpp_run import where
from optcc.export.sends import Node
from optcc.plans.plan import Plan, Recorded
from optcc.runtime.devices.host import Op
from optcc.schedule import Schedule
from optcc.schedule.assemble import TemplateRow, assemble
from optcc.schedule.columns import BESIDE, Stage
from optcc.schedule.routes import Routes
from optcc.schedule.whole import WholeVectors
from optcc.values.cluster import Cluster
from tests.effort import cases
from tests.native_replay import expected, inputs

RATE = 50 * 10**9
Json = dict[str, Any]


def servers(count: int, nics: int = 1, dead: int = 0) -> Cluster:
    """The last NICs of the second server are dead."""
    cluster = Cluster.uniform(servers=count, nics=nics, rate=RATE)
    for nic in range(dead):
        cluster = cluster.degrade(f"server1/nic{nics - 1 - nic}")
    return cluster


def made(cluster: Cluster, digits: tuple[int, ...], nbytes: int = 1 << 14, segments: int = 1) -> Plan:
    return Plan(cluster, optcc.lower_bound(cluster, nbytes), WholeVectors(digits, segments))


Row = tuple[int, int, int, tuple[int, ...]]
"""Sender, receiver, how it lands, rows that it waits for."""


def by_hand(cluster: Cluster, *parts: Sequence[Row], nbytes: int = 1 << 12) -> Plan:
    """These rows, one after the other, each over its part of the buffer."""
    routes, rows = Routes(cluster), [(part, *row) for part, mine in enumerate(parts) for row in mine]
    template = [
        TemplateRow(part, routes(src, dst), hop, how, Stage.REDUCE_SCATTER, deps)
        for hop, (part, src, dst, how, deps) in enumerate(rows)
    ]
    bounds = np.linspace(0, nbytes, len(parts) + 1, dtype=np.int64)
    schedule = assemble(cluster, nbytes, routes, [(template, np.arange(1), bounds.reshape(1, -1))])
    optcc.verify(schedule)
    recipe = Recorded("by-hand", 1, {}, (), Fraction(1), schedule)
    return Plan(cluster, optcc.lower_bound(cluster, nbytes), recipe)


# What is right.

SUM_THEN_OWN = [(2, 1, BESIDE, ()), (1, 0, BESIDE, (0,)), (0, 2, 0, (1,)), (0, 1, BESIDE, ())]
"""Rank 0 sends its own bytes when it has the sum."""

SHAPES = {
    "2 servers": (servers(2), (2,), 1 << 14, 1),
    "3 servers": (servers(3), (3,), 1 << 14, 1),
    "3 servers, one apart": (servers(3, 2), (2,), 1 << 12, 1),
    "4 servers of 2 NICs, one dead": (servers(4, 2, 1), (4,), 1 << 14, 1),
    "4 servers, 2 hops, 2 segments": (servers(4), (2, 2), 1 << 14, 2),
    "4 servers, 16 bytes": (servers(4), (2, 2), 16, 1),
    "5 servers of 3 NICs, two dead, one apart": (servers(5, 3, 2), (2, 2), 1 << 14, 1),
    "6 servers, 2 hops": (servers(6, 2), (2, 3), 3 << 12, 1),
    "7 servers, one apart, 2 segments": (servers(7, 2, 1), (2, 3), 1 << 13, 2),
    "8 servers of 8 NICs, 4 dead": (servers(8, 8, 4), (8,), 1 << 14, 1),
    "8 servers, 3 hops": (servers(8), (2, 2, 2), 1 << 14, 1),
    "8 servers, 3 segments": (servers(8, 2), (2, 4), 3 << 12, 3),
    "12 servers": (servers(12, 4, 1), (3, 4), 3 << 12, 1),
}


LARGE = {"7 servers, one apart, 2 segments", "8 servers of 8 NICs, 4 dead", "8 servers, 3 segments", "12 servers"}
"""Many files are tried by the clock."""


@pytest.mark.parametrize(
    ("shape", "form"),
    [
        pytest.param(shape, form, marks=pytest.mark.long) if form == "mscclpp" and shape in LARGE else (shape, form)
        for shape in SHAPES for form in ("mscclpp", "chakra", "goal")
    ],
)  # fmt: skip
def test_every_format_takes_them_and_verify_reads_the_file(shape: str, form: str, tmp_path: Path) -> None:
    plan = made(*SHAPES[shape])
    assert plan.schedule().beside
    done = write(plan, form, tmp_path / "out")
    reader = reader_of(done.files[-1])
    assert reader is not None
    again = reader()
    assert (again.format, again.operations, again.kept) == (form, done.operations, True)
    if form != "mscclpp":
        assert again.sums == f"{len(plan.cluster.ranks)} ranks, {plan.bound.nbytes} bytes"
    elif done.predicted_s is not None:
        assert done.predicted_s > MSCCLPP.launch_s


@pytest.mark.parametrize("form", ["mscclpp", "chakra", "goal", "perfetto"])
@pytest.mark.parametrize("count", [3, 4, pytest.param(8, marks=pytest.mark.long)])
def test_what_the_planner_makes_of_few_bytes(count: int, form: str, tmp_path: Path) -> None:
    plan = optcc.plan(servers(count, 2, 1), 1 << 14, alpha=Fraction(5, 10**6), per_chunk=Fraction(1, 10**6))
    assert plan.family == "whole-vectors"
    assert write(plan, form, tmp_path / "out").operations > 0


def test_a_file_of_nodes_says_how_bytes_land() -> None:
    from optcc.export import chakra

    plan = made(*SHAPES["5 servers of 3 NICs, two dead, one apart"])
    kinds = set(plan.schedule().reduce.tolist())
    for files in ([chakra.load(each) for each in chakra.export(plan)], goal.load(goal.export(plan))):
        assert {node.reduce for nodes in files for node in nodes} == kinds == {False, BESIDE}
        sends.run(files)


# MSCCL++: the bits of the sums, on both kinds of channels.


def play(program: MscclppProgram, buffers: list[NDArray[np.float32]]) -> None:
    """Run a file on numbers, in place, in one order that its waits allow."""
    size = len(buffers[0]) // program.chunks
    memory = {(r, "i"): buffer for r, buffer in enumerate(buffers)}
    memory |= {(r, "s"): np.full(gpu.scratch * size, np.nan, np.float32) for r, gpu in enumerate(program.gpus)}
    far, come = mscclpp_file.joined_channels(program), Counter[tuple[int, str, int]]()

    def part(r: int, t: int, op: MscclppOp, span: ChunkSpan) -> NDArray[np.float32]:
        return memory[where(program, r, t, op, span)][span.start * size : (span.start + span.count) * size]

    def done(r: int, t: int, op: MscclppOp) -> bool:
        lanes = [(r, op.channel_type or "", program.gpus[r].threadblocks[t].channels[op.channel_type or ""][c])
                 for c in op.channels]  # fmt: skip
        if op.name == "wait":
            if not all(come[lane] for lane in lanes):
                return False
            come.subtract(lanes)
        elif op.name in ("put", "pws", "copy", "re"):
            part(r, t, op, op.dst[0])[:] = sum((part(r, t, op, span) for span in op.src[1:]), part(r, t, op, op.src[0]))
        if op.name in ("signal", "pws"):
            come.update(far[lane] for lane in lanes)
        return True

    todo = deque(
        (r, t, list(block.ops)) for r, gpu in enumerate(program.gpus) for t, block in enumerate(gpu.threadblocks)
    )
    while todo:
        r, t, ops = todo.popleft()
        while ops and done(r, t, ops[0]):
            del ops[0]
        if ops:
            todo.append((r, t, ops))


def check_bits(program: MscclppProgram, schedule: Schedule) -> None:
    given = inputs(schedule, "float32", Op.SUM, 7)
    want = [each.tobytes() for each in expected(schedule, given, Op.SUM)]
    buffers = [each.copy() for each in given]
    play(program, buffers)
    assert [each.tobytes() for each in buffers] == want
    assert len(set(want)) == 1


def with_channels(rounded: Chunked, kind: str) -> Chunked:
    """The same by other channels: "memory" within one server, "mixed" within servers and between."""
    if kind == "port":
        return rounded
    ranks = len(rounded.plan.cluster.ranks)
    gpus = ranks if kind == "memory" else next(n for n in range(2, ranks + 1) if ranks % n == 0)
    hosts = Cluster.uniform(servers=ranks // gpus, nics=gpus, gpus=gpus, rate=RATE, nvlink_rate=4 * RATE)
    recipe = Recorded("by-hand", 1, {}, (), Fraction(1), rounded.plan.schedule())
    other = replace(rounded.plan, cluster=replace(hosts, gpu_ranks=True), recipe=recipe)
    return replace(rounded, plan=other.with_schedule(rounded.plan.schedule()))


@pytest.mark.parametrize("kind", ["port", "memory", "mixed"])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if SHAPES[shape][2] >= 1 << 12])
def test_bits_of_the_sums_are_those_of_the_plan(shape: str, kind: str) -> None:
    plan = made(*SHAPES[shape])
    for parts, blocks in ((1, 1), (4, 3)):
        cut = finer(chunked(plan, unit=16), parts, 16)
        assert cut is not None
        cut = with_channels(cut, kind)
        program = mscclpp.build(cut, blocks)
        mscclpp_run.run(program)
        check_bits(program, plan.schedule())
        assert mscclpp_clock.seconds(program, cut.plan.cluster, plan.bound.nbytes) > MSCCLPP.launch_s


def drawn(seed: int) -> Plan:
    """A schedule that no family makes: anybody sends any of its sums that adds to what another one has."""
    draw = random.Random(seed)
    count = draw.randint(3, 5)
    rows: list[Row] = []
    landed: list[list[int]] = [[] for _ in range(count)]  # rows
    sums = [[1 << rank] for rank in range(count)]  # contributions after so many of them
    while any(each[-1] != (1 << count) - 1 for each in sums):
        offers = [
            (src, dst, carried) for src in range(count) for dst in range(count) for carried in range(len(sums[src]))
            if src != dst and not sums[src][carried] & sums[dst][-1]
        ]  # fmt: skip
        src, dst, carried = draw.choice(offers)
        rows.append((src, dst, BESIDE, tuple(landed[src][:carried])))
        landed[dst].append(len(rows) - 1)
        sums[dst].append(sums[dst][-1] | sums[src][carried])
    return by_hand(servers(count), rows)


@pytest.mark.parametrize("seed", range(cases(40)))
def test_any_schedule_with_receive_buffers(seed: int) -> None:
    from optcc.export import chakra

    plan = drawn(seed)
    given = inputs(plan.schedule(), "float32", Op.SUM, 7)
    want = [each.tobytes() for each in expected(plan.schedule(), given, Op.SUM)]
    for kind in ("port", "memory"):
        program = mscclpp.build(with_channels(chunked(plan, unit=16), kind), 1)
        mscclpp_run.run(program)
        buffers = [each.copy() for each in given]
        play(program, buffers)
        assert [each.tobytes() for each in buffers] == want
    sends.run([chakra.load(each) for each in chakra.export(plan)])
    sends.run(goal.load(goal.export(plan)))


@pytest.mark.parametrize("kind", ["port", "memory"])
def test_who_waits_for_other_bytes_does_not_carry_them(kind: str) -> None:
    ways = [(src, dst) for src in range(3) for dst in range(3) if src != dst]
    later = [tuple(row for row, (_, dst) in enumerate(ways) if dst == src) for src, _ in ways]
    plan = by_hand(
        servers(3),
        [(src, dst, BESIDE, ()) for src, dst in ways],
        [(src, dst, BESIDE, deps) for (src, dst), deps in zip(ways, later, strict=True)],
    )
    rounded = with_channels(chunked(plan, unit=16), kind)
    assert {move.carries for move in rounded.moves} == {0}
    for blocks in (1, 2):
        program = mscclpp.build(rounded, blocks)
        mscclpp_run.run(program)
        check_bits(program, plan.schedule())
    sends.run(goal.load(goal.export(plan)))


@pytest.mark.parametrize("kind", ["port", "memory"])
def test_own_bytes_that_go_out_after_the_sum_are_still_there(kind: str) -> None:
    """Rank 0 has all when it sends its own bytes; a sum made in the input would have gone out instead."""
    plan = by_hand(servers(3), SUM_THEN_OWN)
    program = mscclpp.build(with_channels(chunked(plan, unit=16), kind), 1)
    mscclpp_run.run(program)
    given = inputs(plan.schedule(), "float32", Op.SUM, 7)
    buffers = [each.copy() for each in given]
    play(program, buffers)
    assert [each.tobytes() for each in buffers] == [each.tobytes() for each in expected(plan.schedule(), given, Op.SUM)]


# MSCCL++: who is told that scratch has been read, and what that costs.


def told(program: MscclppProgram) -> list[tuple[int, int]]:
    """(rank, peer) of every signal by itself on port channels."""
    return [
        (r, gpu.channels["port"][block.channels["port"][c]])
        for r, gpu in enumerate(program.gpus) for block in gpu.threadblocks for op in block.ops
        if (op.name, op.channel_type) == ("signal", "port") for c in op.channels
    ]  # fmt: skip


def test_nobody_is_told_what_he_knows() -> None:
    """Who handed in has a result that came by who added it up; those that exchange know nothing of each other."""
    star = by_hand(servers(3), [(1, 0, BESIDE, ()), (2, 0, BESIDE, ()), (0, 1, 0, (0, 1)), (0, 2, 0, (0, 1))])
    assert not told(mscclpp.build(chunked(star, unit=16), 1))
    four = mscclpp.build(chunked(made(servers(4), (2, 2)), unit=16), 1)
    assert sorted(told(four)) == [(r, peer) for r in range(4) for peer in sorted((r ^ 1, r ^ 2))]
    in_place = optcc.plan(servers(4), 1 << 14, in_place=True)
    assert not told(mscclpp.export(in_place).program)


def test_results_are_made_where_they_belong() -> None:
    """Once the NICs have read what was there; memory channels need not wait for any."""
    plan = made(servers(4), (2, 2))
    for kind in ("port", "memory"):
        program = mscclpp.build(with_channels(chunked(plan, unit=16), kind), 1)
        names = Counter(op.name for op in program.gpus[0].threadblocks[0].ops)
        assert (names["copy"], names["flush"]) == (0, int(kind == "port"))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_an_exchange_by_the_clock_as_told_by_hand(count: int) -> None:
    """Puts, their flush, a wait for those of others, sums, signals by themselves by the proxy, a wait for those."""
    nbytes, clock, others = 1 << 16, MSCCLPP, count - 1
    plan = made(servers(count), (count,), nbytes)
    told = mscclpp_clock.seconds(mscclpp.build(chunked(plan, unit=16), 1), plan.cluster, nbytes)
    operations = 2 + 2 * others + 3  # a put, a wait; nops and sums; a nop, a signal, a wait
    operations += others - 1  # flushes; the nop before them comes while the proxy serves the puts
    proxy = others * (2 * clock.port_message_s + clock.port_flush_s) + clock.signal_s
    moved = others * (nbytes / RATE + nbytes / clock.add_rate)
    assert told == pytest.approx(clock.launch_s + operations * clock.operation_s + proxy + moved, rel=1e-6)


# MSCCL++: files that are wrong.


def _blocks(plan: Json) -> Iterator[list[Json]]:
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            yield block["ops"]


def drop(name: str, which: int = 0, **values: object) -> Callable[[Json], None]:
    """The which-th operation of that name and those values, in the first block that has so many."""

    def mutate(plan: Json) -> None:
        for ops in _blocks(plan):
            found = [op for op in ops if op["name"] == name and all(op.get(k) == v for k, v in values.items())]
            if len(found) > which:
                ops.remove(found[which])
                return
        raise AssertionError(name)

    return mutate


def nothing_told(plan: Json) -> None:
    for ops in _blocks(plan):
        at = max(i for i, op in enumerate(ops) if op["name"] == "signal")
        assert ops[at + 1]["name"] == "wait"
        del ops[at : at + 2]


def told_too_soon(plan: Json) -> None:
    """Before the sum."""
    for ops in _blocks(plan):
        at = next(i for i, op in enumerate(ops) if op["name"] == "signal")
        first = next(i for i, op in enumerate(ops) if op["name"] == "re")
        ops.insert(first, ops.pop(at))


def one_slot_for_two(plan: Json) -> None:
    """Rank 0 gets what two others send in one place."""
    come = []
    for gpu in plan["gpus"][1:]:
        for block in gpu["threadblocks"]:
            refs = {ref["access_channel_type"]: ref["remote_buffer_ids"] for ref in block["remote_buffer_refs"]}
            for op in block["ops"]:
                for span in op.get("dst_buff", ()) if op["name"] == "pws" else ():
                    remote = gpu["remote_buffers"][refs["port"][span["buffer_id"]]] if "buffer_id" in span else {}
                    if (remote.get("rank"), remote.get("type")) == (0, "s"):
                        come.append(span)
    come[1]["index"] = come[0]["index"]


def copied_too_soon(plan: Json) -> None:
    for ops in _blocks(plan):
        at = next((i for i, op in enumerate(ops) if op["name"] == "copy"), 0)
        if at:
            flush = next(i for i, op in enumerate(ops) if op["name"] == "flush")
            ops.insert(flush, ops.pop(at))


def unjoined(name: str, after: str) -> Callable[[Json], None]:
    def mutate(plan: Json) -> None:
        for ops in _blocks(plan):
            for i, op in enumerate(ops[1:-1], 1):
                if (ops[i - 1]["name"], op["name"], ops[i + 1]["name"]) == (after, "nop", name):
                    del ops[i]
                    return
        raise AssertionError(name)

    return mutate


MSCCLPP_WRONG: dict[str, tuple[Callable[[Json], None], str]] = {
    "nobody is told that scratch was read": (nothing_told, "race: .* scratch"),
    "a signal too few": (drop("signal"), "deadlock"),
    "told before it was read": (told_too_soon, "race"),
    "one slot for two": (one_slot_for_two, "race|second time"),
    "a sum is lost": (drop("re", 1), "missing|nothing was written"),
    "the first sum is lost": (drop("re"), "missing|nothing was written"),
    "the sum is made before NICs have read the input": (drop("flush"), "race"),
    "no nop between several puts and their flush": (unjoined("flush", "pws"), "race"),
    "no nop between the waits and the sum": (unjoined("re", "wait"), "race"),
    "no nop between two sums": (unjoined("re", "re"), "second time|race|nothing was written"),
    "no nop between the sum and the signal": (unjoined("signal", "re"), "race"),
}
COPY_WRONG: dict[str, tuple[Callable[[Json], None], str]] = {
    "the result is not copied": (drop("copy"), "missing"),
    "the result is copied before NICs have read the input": (copied_too_soon, "race"),
    "no nop between the flush and the copy": (unjoined("copy", "flush"), "race"),
    "no nop between the copy and the signal": (unjoined("signal", "copy"), "race"),
}


@cache
def file_of(plan: str) -> str:
    plans = {"one hop": made(servers(4), (4,)), "two hops": made(servers(4), (2, 2)),
             "own bytes last": by_hand(servers(3), SUM_THEN_OWN)}  # fmt: skip
    return mscclpp_file.dump(mscclpp.build(chunked(plans[plan], unit=16), 1))


@pytest.mark.parametrize(
    ("plan", "name"),
    [
        *(("one hop", name) for name in MSCCLPP_WRONG),
        *(("two hops", name) for name in MSCCLPP_WRONG if name != "no nop between two sums"),  # a hop has one sum
        *(("own bytes last", name) for name in COPY_WRONG),
    ],
)
def test_wrong_mscclpp_files_are_found(plan: str, name: str) -> None:
    mscclpp_run.run(mscclpp_file.load(file_of(plan)))
    raw = json.loads(file_of(plan))
    change, message = (MSCCLPP_WRONG | COPY_WRONG)[name]
    change(raw)
    assert raw != json.loads(file_of(plan))
    with pytest.raises(VerifyError, match=message):
        mscclpp_run.run(mscclpp_file.load(json.dumps(raw)))


@pytest.mark.parametrize("plan", ["one hop", "two hops"])
def test_no_operation_can_be_left_out(plan: str) -> None:
    raw = json.loads(file_of(plan))
    for gpu in raw["gpus"]:
        for block in gpu["threadblocks"]:
            for i, op in enumerate(list(block["ops"])):
                del block["ops"][i]
                with pytest.raises(VerifyError):
                    mscclpp_run.run(mscclpp_file.load(json.dumps(raw)))
                block["ops"].insert(i, op)


def test_what_one_launch_does_not_show_two_do() -> None:
    """Scratch that is written again before it was read, on channels that need no copy."""
    rounded = with_channels(chunked(made(servers(4), (4,)), unit=16), "memory")
    raw = json.loads(mscclpp_file.dump(mscclpp.build(rounded, 1)))
    nothing_told(raw)
    mscclpp_run.run(mscclpp_file.load(json.dumps(raw)), launches=1)
    with pytest.raises(VerifyError, match=r"race: .*scratch"):
        mscclpp_run.run(mscclpp_file.load(json.dumps(raw)), launches=2)


def test_scratch_of_another_size_lies_elsewhere() -> None:
    """Whoever goes on while a peer still copies from scratch does no harm, unless the next message has another size."""
    raw = json.loads(file_of("own bytes last"))
    unjoined("signal", "copy")(raw)
    with pytest.raises(
        VerifyError, match=r"race: the next launch of rank 1, of another size, writes .* scratch of rank 0"
    ):
        mscclpp_run.run(mscclpp_file.load(json.dumps(raw)))
    raw["min_message_size"] = raw["max_message_size"] = 1 << 12
    mscclpp_run.run(mscclpp_file.load(json.dumps(raw)))
    raw["max_message_size"] += 16
    with pytest.raises(VerifyError, match="of another size"):
        mscclpp_run.run(mscclpp_file.load(json.dumps(raw)))


def test_a_thread_does_not_know_what_another_waited_for() -> None:
    """A wait on two channels is two threads'; a put is the first one's: it knows of the first channel alone."""
    cluster = Cluster.uniform(servers=4, nics=2, rate=25 * 10**9).degrade("server0/nic0", 0.37)
    program = mscclpp.export(optcc.plan(cluster, 1 << 26, segments=1), segments=2, threadblocks=4).program
    found = 0
    for r, gpu in enumerate(program.gpus):
        for t, block in enumerate(gpu.threadblocks):
            for i, (one, two, then) in enumerate(zip(block.ops, block.ops[1:], block.ops[2:], strict=False)):
                if (one.name, two.name, then.name) != ("wait", "wait", "pws") or one.channels == two.channels:
                    continue
                races = []
                for channels in ((*one.channels, *two.channels), (*two.channels, *one.channels)):
                    ops = (*block.ops[:i], replace(one, channels=channels), *block.ops[i + 2 :])
                    blocks = [replace(block, ops=ops) if b == t else each for b, each in enumerate(gpu.threadblocks)]
                    gpus = [replace(gpu, threadblocks=tuple(blocks)) if g == r else each
                            for g, each in enumerate(program.gpus)]  # fmt: skip
                    try:
                        mscclpp_run.run(replace(program, gpus=tuple(gpus)))
                        races.append(False)
                    except VerifyError as error:
                        races.append("race" in str(error))
                found += races == [True, False]
    assert found


# Chakra and GOAL: files that are wrong.

Files = list[list[Node]]


def _pair(files: Files, node: Node, rank: int, **values: Any) -> None:
    """Change both ends of a send of `rank`."""
    files[rank][node.id] = replace(node, **values)
    other = next(each for each in files[node.peer] if not each.sends and (each.peer, each.tag) == (rank, node.tag))
    files[node.peer][other.id] = replace(other, **values)


def _sends(files: Files, waits: bool) -> Iterator[tuple[int, Node]]:
    for rank, nodes in enumerate(files):
        for node in nodes:
            if node.sends and bool(node.deps) == waits:
                yield rank, node


def without_what_landed(files: Files) -> None:
    rank, node = next(_sends(files, True))
    files[rank][node.id] = replace(node, deps=())


def without_an_earlier_one(files: Files) -> None:
    rank, node = next((r, n) for r, n in _sends(files, True) if len(n.deps) > 1)
    files[rank][node.id] = replace(node, deps=node.deps[1:])


def landing(how: int) -> Callable[[Files], None]:
    def mutate(files: Files) -> None:
        rank, node = next(_sends(files, False))
        _pair(files, node, rank, reduce=how)

    return mutate


def all_in_place(files: Files) -> None:
    for nodes in files:
        nodes[:] = [replace(node, reduce=1) for node in nodes]


def one_end(files: Files) -> None:
    rank, node = next(_sends(files, False))
    files[rank][node.id] = replace(node, reduce=1)


def sent_twice(files: Files) -> None:
    rank, node = next(_sends(files, False))
    tag = 10**6
    files[rank].append(replace(node, id=len(files[rank]), tag=tag))
    peer = files[node.peer]
    peer.append(Node(len(peer), False, rank, tag, node.nbytes, node.offset, node.reduce, (), (), node.port))


NODES_WRONG: dict[str, tuple[Callable[[Files], None], str]] = {
    "a sum without what landed": (without_what_landed, "is missing"),
    "a sum without an earlier part": (without_an_earlier_one, "may be sent without that"),
    "one is added in place": (landing(1), "changes in place what others land beside"),
    "one overwrites": (landing(0), "changes in place what others land beside"),
    "all are added in place": (all_in_place, "race"),
    "both ends differ": (one_end, "differ"),
    "one is sent twice": (sent_twice, "a second time"),
}


@pytest.mark.parametrize("form", ["chakra", "goal"])
@pytest.mark.parametrize("name", NODES_WRONG)
def test_wrong_files_of_nodes_are_found(name: str, form: str) -> None:
    from optcc.export import chakra

    plan = made(servers(6, 2), (3, 2))
    arrives = [0] * 10**6
    if form == "chakra":
        mine = [[*chakra.load(each)] for each in chakra.export(plan)]
    else:
        mine = [[*each] for each in goal.load(goal.export(plan))]
    sends.run(mine)
    change, message = NODES_WRONG[name]
    change(mine)
    if form == "chakra":
        mine = [[*chakra.load(chakra.dump(each))] for each in mine]
    else:
        mine = goal.load(goal.dump(mine, [*arrives, 0]))
    with pytest.raises(VerifyError, match=message):
        sends.run(mine)


def test_a_chain_of_sends_carries_nothing() -> None:
    """A send comes after the one before it at its port, so after what that one waited for, but does not carry it."""
    rows: list[Row] = [(1, 3, BESIDE, ()), (0, 1, BESIDE, ()), (1, 2, BESIDE, (1,)), (1, 0, BESIDE, ())]
    rows += [(src, dst, BESIDE, ()) for src, dst in ((2, 1), (3, 1), (3, 2), (0, 3), (2, 3), (2, 0), (3, 0))]
    nodes = goal.load(goal.export(by_hand(servers(4), rows)))
    _, before, later = (node for node in nodes[1] if node.sends)
    assert (later.tag, later.deps, later.order) == (3, (), (before.id,))
    sends.run(nodes)
    nodes[1][later.id] = replace(later, deps=before.deps)
    with pytest.raises(VerifyError, match="a second time"):
        sends.run(nodes)


def test_beside_and_not_added_cannot_be_read() -> None:
    from optcc.export import chakra

    content = chakra.export(made(servers(2), (2,)))[0]
    node = chakra.load(content)[0]
    assert node.reduce == BESIDE
    kept = [chakra.dump([node])]
    index = kept[0].find(b"optcc_reduce")
    wrong = bytearray(kept[0])
    wrong[wrong.index(1, index + len(b"optcc_reduce") + 2)] = 0
    with pytest.raises(optcc.InputError, match="lands beside, and is not added"):
        chakra.load(bytes(wrong))
