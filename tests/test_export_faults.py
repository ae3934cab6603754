"""Interpreters of exported files notice what is planted in them, and limits are refused by name."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import pytest

import optcc
from optcc.errors import InputError, VerifyError
from optcc.export import mscclpp, mscclpp_file, mscclpp_run, perfetto, sends
from optcc.export.sends import Node
from optcc.plans.plan import Plan
from optcc.values.cluster import Cluster

Json = dict[str, Any]


# Faults: a mutation takes a parsed file and plants one; it fails when it finds nothing to break


def _ops(plan: Json, name: str, kind: str | None = None) -> Iterator[tuple[list[Json], int, Json]]:
    """(operations of the threadblock, place, operation) of every operation of that name."""
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            for i, op in enumerate(block["ops"]):
                if op["name"] == name and (kind is None or op["channel_type"] == kind):
                    yield block["ops"], i, op


def _between(plan: Json, before: str, after: str) -> tuple[list[Json], int]:
    """The place of a nop between two such operations."""
    return next(
        (ops, i) for ops, i, _ in _ops(plan, "nop")
        if 0 < i < len(ops) - 1 and ops[i - 1]["name"] == before and ops[i + 1]["name"] == after
    )  # fmt: skip


def drop_nop(before: str, after: str) -> Callable[[Json], None]:
    def mutate(plan: Json) -> None:
        ops, i = _between(plan, before, after)
        del ops[i]

    return mutate


def drop_wait(plan: Json) -> None:
    ops, i, _ = next(_ops(plan, "wait"))
    del ops[i]


def drop_last_wait(plan: Json) -> None:
    ops, i, _ = list(_ops(plan, "wait"))[-1]
    del ops[i]


def drop_all_flushes(plan: Json) -> None:
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            block["ops"] = [op for op in block["ops"] if op["name"] != "flush"]


def flush_of_nothing(plan: Json) -> None:
    for _, _, op in _ops(plan, "flush"):
        del op["dst_buff"]


def put_without_signal(plan: Json) -> None:
    next(_ops(plan, "pws"))[2]["name"] = "put"


def put_with_signal_on_memory(plan: Json) -> None:
    ops, i, op = next(_ops(plan, "put", "memory"))
    op["name"] = "pws"
    del ops[i + 1 : i + 3]  # the nop and the signal


def signal_twice(plan: Json) -> None:
    ops, i, op = next(_ops(plan, "pws"))
    ops.insert(i + 1, {"name": "signal", "channel_type": op["channel_type"], "channel_ids": op["channel_ids"]})


def put_elsewhere(plan: Json) -> None:
    op = next(op for _, _, op in _ops(plan, "pws") if op["dst_buff"][0]["index"] > 0)
    op["dst_buff"][0]["index"] -= 1


def put_outside(plan: Json) -> None:
    next(_ops(plan, "pws"))[2]["dst_buff"][0]["index"] = 10**6


def put_other_chunks(plan: Json) -> None:
    ops = [op for _, _, op in _ops(plan, "pws")]
    one = ops[0]
    other = next(
        op
        for op in ops
        if op["src_buff"][0] != one["src_buff"][0] and op["src_buff"][0]["size"] == one["src_buff"][0]["size"]
    )
    one["src_buff"] = copy.deepcopy(other["src_buff"])


def put_less(plan: Json) -> None:
    next(_ops(plan, "pws"))[2]["src_buff"][0]["size"] += 1


def add_twice(plan: Json) -> None:
    ops, i, op = next(_ops(plan, "re"))
    ops[i + 1 : i + 1] = [{"name": "nop"}, copy.deepcopy(op)]


def copy_instead_of_adding(plan: Json) -> None:
    op = next(_ops(plan, "re"))[2]
    op["name"], op["src_buff"] = "copy", op["src_buff"][1:]


def add_before_it_came(plan: Json) -> None:
    ops, i = _between(plan, "wait", "re")
    ops[i - 1 : i + 2] = [ops[i + 1], ops[i], ops[i - 1]]


def add_other_scratch(plan: Json) -> None:
    ops = [op for _, _, op in _ops(plan, "re")]
    ops[0]["src_buff"][1]["index"] = 10**6


def share_scratch(plan: Json) -> None:
    """Two senders put into the same scratch."""
    gpu = plan["gpus"][-1]
    adds = [op for block in gpu["threadblocks"] for op in block["ops"] if op["name"] == "re"]
    same = next(
        (a, b) for a in adds for b in adds if a is not b and a["src_buff"][1]["size"] == b["src_buff"][1]["size"]
    )
    old, new = same[0]["src_buff"][1]["index"], same[1]["src_buff"][1]["index"]
    for other in plan["gpus"]:
        for block in other["threadblocks"]:
            refs = {ref["access_channel_type"]: ref["remote_buffer_ids"] for ref in block["remote_buffer_refs"]}
            for op in block["ops"]:
                for dst in op.get("dst_buff", ()):
                    if "buffer_id" in dst and dst["index"] == old and op["name"] != "flush":
                        remote = other["remote_buffers"][refs[op["channel_type"]][dst["buffer_id"]]]
                        if (remote["rank"], remote["type"]) == (len(plan["gpus"]) - 1, "s"):
                            dst["index"] = new
    same[0]["src_buff"][1]["index"] = new


def wait_first(plan: Json) -> None:
    """Every threadblock waits before it puts."""
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            block["ops"].sort(key=lambda op: op["name"] != "wait")


def other_peer(plan: Json) -> None:
    peers = plan["gpus"][0]["channels"][0]["connected_to"]
    peers[0] = next(r for r in range(1, len(plan["gpus"])) if r != peers[0])


def other_buffer(plan: Json) -> None:
    remote = plan["gpus"][0]["remote_buffers"][0]
    remote["rank"] = next(r for r in range(1, len(plan["gpus"])) if r != remote["rank"])


def no_such_channel(plan: Json) -> None:
    next(_ops(plan, "wait"))[2]["channel_ids"] = [99]


def drop_put(plan: Json) -> None:
    ops, i, _ = next(_ops(plan, "pws"))
    del ops[i]


MSCCLPP: dict[str, tuple[Callable[[Json], None], str]] = {
    "no nop between a wait and an addition": (drop_nop("wait", "re"), "race"),
    "no nop between an addition and a put": (drop_nop("re", "pws"), "race"),
    "a wait is missing": (drop_wait, "race|never waited|nothing was written"),
    "the last wait is missing": (drop_last_wait, "race|never waited"),
    "no flush": (drop_all_flushes, "race: the caller"),
    "flushes that name no destination": (flush_of_nothing, "race: the caller"),
    "a put without a signal": (put_without_signal, "deadlock"),
    "a signal too many": (signal_twice, "race|never waited"),
    "a put to the chunk before": (put_elsewhere, "race|missing|second time|nothing was written"),
    "a put outside the buffer": (put_outside, "outside"),
    "a put of other chunks": (put_other_chunks, "race|missing|second time|to chunk"),
    "a put of more than there is room for": (put_less, "different sizes"),
    "an addition twice": (add_twice, "second time"),
    "a copy instead of an addition": (copy_instead_of_adding, "missing"),
    "an addition before its bytes came": (add_before_it_came, "race|nothing was written"),
    "an addition of scratch that is not there": (add_other_scratch, "outside"),
    "two senders into one scratch": (share_scratch, "race|second time"),
    "everyone waits first": (wait_first, "deadlock"),
    "a channel to another rank": (other_peer, "another rank|deadlock|channels to rank .*, which has . back"),
    "a buffer of another rank": (other_buffer, "another rank"),
    "a channel that is not there": (no_such_channel, "does not have"),
    "a put is missing": (drop_put, "deadlock|race"),
}
MSCCLPP_MEMORY: dict[str, tuple[Callable[[Json], None], str]] = {
    "put with signal on a memory channel": (put_with_signal_on_memory, "deadlock"),
    "no nop between a put and its signal": (drop_nop("put", "signal"), "race"),
}


# Of Chakra traces, the nodes of every rank

Files = list[list[Node]]


def _change(
    files: Files, sends: bool, which: int = 0, needs: Callable[[Node], bool] = lambda node: True, **values: object
) -> Node:
    """Change fields of the which-th such node; returns the old one."""
    places = [(r, i) for r, nodes in enumerate(files) for i, n in enumerate(nodes) if n.sends == sends and needs(n)]
    rank, i = places[which]
    old = files[rank][i]
    files[rank][i] = replace(old, **values)  # type: ignore[arg-type]
    return old


def _change_pair(files: Files, which: Callable[[Node], bool], **values: object) -> None:
    """Change both nodes of the first transfer whose send is such."""
    old = _change(files, True, needs=which, **values)
    _change(files, False, needs=lambda node: node.tag == old.tag, **values)


def _raw_send(node: Node) -> bool:
    return not node.deps


def _circle(files: Files) -> None:
    """A raw send waits for the finished bytes, which need it."""
    node = next(n for n in files[0] if n.sends and not n.deps)
    last = [n.id for n in files[0] if not n.sends and n.offset == node.offset][-1]
    files[0][node.id] = replace(node, deps=(*node.deps, last))


def _drop_last(files: Files, sends: bool) -> None:
    rank = next(r for r, nodes in enumerate(files) if nodes[-1].sends == sends)
    del files[rank][-1]


CHAKRA: dict[str, tuple[Callable[[Files], object], str]] = {
    "a send does not wait": (lambda f: _change(f, True, needs=lambda n: bool(n.deps), deps=()), "race"),
    "two nodes wait for each other": (_circle, "deadlock"),
    "a tag of its own on one side": (lambda f: _change(f, True, tag=10**6), "missing"),
    "a receive is missing": (lambda f: _drop_last(f, False), "receive is missing"),
    "a send is missing": (lambda f: _drop_last(f, True), "send is missing"),
    "a size that differs": (lambda f: _change(f, True, nbytes=8), "differ"),
    "another peer": (lambda f: _change(f, True, needs=lambda n: n.peer != 3, peer=3), "missing|its peer|twice"),
    "a wait for a node that is not there": (lambda f: _change(f, True, deps=(10**6,)), "not there"),
    "copied, not added": (lambda f: _change_pair(f, lambda n: n.reduce, reduce=False), "race|missing"),
    "added, not copied": (lambda f: _change_pair(f, lambda n: not n.reduce, reduce=True), "second time|race"),
    "other bytes": (
        lambda f: _change_pair(f, lambda n: n.offset > 0 and bool(n.deps), offset=0),
        "race|missing|second",
    ),
    "a raw send of nothing": (lambda f: _change_pair(f, _raw_send, nbytes=0), "no bytes"),
    "a node twice": (lambda f: f[0].append(f[0][0]), "numbered"),
}


def _spans(trace: Json, out: bool) -> list[Json]:
    """Spans of transfers on ports that send (`out`) or receive."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    return [
        e for e in trace["traceEvents"]
        if e["ph"] == "X" and "transfer" in e["args"] and names[e["pid"], e["tid"]].endswith(" out") == out
    ]  # fmt: skip


def _drop_span(trace: Json, out: bool) -> None:
    trace["traceEvents"].remove(_spans(trace, out)[0])


def _doubled(trace: Json) -> None:
    trace["traceEvents"].append(copy.deepcopy(_spans(trace, True)[0]))


def _with(out: bool, **values: object) -> Callable[[Json], None]:
    return lambda trace: _spans(trace, out)[-1].update(values)


def _unnamed(trace: Json) -> None:
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e["name"] != "thread_name"]


def _no_processes(trace: Json) -> None:
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e["name"] != "process_name"]


def _fewer_bytes(trace: Json) -> None:
    _spans(trace, False)[0]["args"]["bytes"] -= 8


def _longer(trace: Json) -> None:
    span = _spans(trace, True)[0]
    span["dur"] += 10**9


PERFETTO: dict[str, tuple[Callable[[Json], None], str]] = {
    "a span of sending is missing": (lambda t: _drop_span(t, True), "land whole|is missing"),
    "a span of receiving is missing": (lambda t: _drop_span(t, False), "land whole|is missing"),
    "a span twice": (_doubled, "same time"),
    "landed before it left": (_with(False, ts=0.0), "before it leaves|same time"),
    "sent after it landed": (_with(True, ts=1e9), "before it leaves|before it has left"),
    "a span that ends before it begins": (_with(True, dur=-1.0), "ends before"),
    "a span before time began": (_with(True, ts=-1.0), "begins before"),
    "tracks without names": (_unnamed, "no name"),
    "processes without names": (_no_processes, "no name"),
    "bytes lost on the way": (_fewer_bytes, "land whole"),
    "a span over others": (_longer, "same time|has landed before"),
    "a span on another rank's port": (_with(True, pid=2), "not its own|no name|same time"),
}


@cache
def plan(segments: int = 2) -> Plan:
    """Rings of 3 and of 4, one degraded server."""
    cluster = Cluster.uniform(servers=4, nics=2, rate=10**9).degrade("server0/nic0", 0.37)
    return optcc.plan(cluster, 1 << 20, segments=segments)


@cache
def gpu_plan() -> Plan:
    """GPUs as ranks: memory channels inside servers, port channels between them."""
    cluster = Cluster.uniform(servers=2, nics=2, gpus=2, rate=10**9, nvlink_rate=10**10)
    return optcc.plan(replace(cluster.degrade("server0/nic0", Fraction(1, 2)), gpu_ranks=True), 1 << 20, segments=1)


@cache
def plus_text(gpus: bool = False) -> str:
    return mscclpp_file.dump(
        mscclpp.export(gpu_plan() if gpus else plan(), segments=1 if gpus else 2, threadblocks=8).program
    )


@cache
def trace_text() -> str:
    return perfetto.export(plan())


def fails(message: str, mutate: Callable[[], object]) -> None:
    with pytest.raises((VerifyError, InputError)) as caught:
        mutate()
    assert re.search(message, str(caught.value)), caught.value


@pytest.mark.parametrize("name", [*MSCCLPP, *MSCCLPP_MEMORY])
def test_faults_in_mscclpp(name: str) -> None:
    mutate, message = {**MSCCLPP, **MSCCLPP_MEMORY}[name]
    raw = json.loads(plus_text(name in MSCCLPP_MEMORY))
    mutate(raw)
    fails(message, lambda: mscclpp_run.run(mscclpp_file.load(json.dumps(raw))))


def test_no_operation_can_be_left_out() -> None:
    """Of rank 1, one at a time. (A flush may be, and the nop before it: where the bytes have come back, NICs have read
    them.)"""
    raw = json.loads(plus_text())
    for block in raw["gpus"][1]["threadblocks"]:
        for i, op in enumerate(list(block["ops"])):
            del block["ops"][i]
            if "flush" not in (op["name"], *(each["name"] for each in block["ops"][i : i + 1])):
                fails("", lambda: mscclpp_run.run(mscclpp_file.load(json.dumps(raw))))
            block["ops"].insert(i, op)


@pytest.mark.parametrize("name", CHAKRA)
def test_faults_in_chakra(name: str) -> None:
    from optcc.export import chakra

    mutate, message = CHAKRA[name]
    files = [list(chakra.load(content)) for content in chakra.export(plan())]
    mutate(files)
    again = [chakra.load(chakra.dump(nodes)) for nodes in files]
    fails(message, lambda: sends.run(again))


@pytest.mark.parametrize("name", PERFETTO)
def test_faults_in_traces(name: str) -> None:
    mutate, message = PERFETTO[name]
    raw = json.loads(trace_text())
    mutate(raw)
    fails(message, lambda: perfetto.run(perfetto.load(json.dumps(raw))))


def _wide(op: mscclpp_file.MscclppOp, count: int) -> mscclpp_file.MscclppOp:
    return replace(op, channels=tuple(range(count)))


@pytest.mark.parametrize(
    ("limit", "change"),
    [
        ("threadblocks of rank 0", lambda g: replace(g, threadblocks=g.threadblocks * 109)),
        ("operations in threadblock 0", lambda g: _block(g, ops=g.threadblocks[0].ops * 65)),
        ("port channels in threadblock 0", lambda g: _block(g, channels={"port": tuple(range(17))})),
        ("remote buffers by port", lambda g: _block(g, buffers={"port": tuple(range(17))})),
        ("channels of a", lambda g: _block(g, ops=(_wide(g.threadblocks[0].ops[0], 9),))),
        ("bytes of a buffer", lambda g: replace(g, scratch=2**20)),
    ],
)
def test_limits_of_mscclpp(limit: str, change: Callable[[mscclpp_file.MscclppGpu], mscclpp_file.MscclppGpu]) -> None:
    program = mscclpp_file.load(plus_text())
    mscclpp_file.check_limits(program)
    fails(limit, lambda: mscclpp_file.check_limits(replace(program, gpus=(change(program.gpus[0]), *program.gpus[1:]))))


def _block(gpu: mscclpp_file.MscclppGpu, **values: Any) -> mscclpp_file.MscclppGpu:
    return replace(gpu, threadblocks=(replace(gpu.threadblocks[0], **values), *gpu.threadblocks[1:]))


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"collective": "allreduce", "inplace": true}', "<algo/>"])
def test_other_files_are_refused(text: str) -> None:
    for load in (mscclpp_file.load, perfetto.load):
        fails("cannot be read", lambda load=load: load(text))  # type: ignore[misc]


@pytest.mark.parametrize("content", [b"", b"\x00", b"\x07\n\x050.0.9", b"\xff" * 40])
def test_other_traces_are_refused(content: bytes) -> None:
    from optcc.export import chakra

    fails("cannot be read", lambda: chakra.load(content))
