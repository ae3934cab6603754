"""Interpreters of exported files notice what is planted in them, and limits are refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import pytest
from lxml import etree

import optcc
from optcc.errors import InputError, VerifyError
from optcc.export import chakra_run, msccl, msccl_file, msccl_run, mscclpp, mscclpp_file, mscclpp_run, perfetto
from optcc.plans.plan import Plan
from optcc.values.cluster import Cluster
from tests.export_mutations import CHAKRA, MSCCL, MSCCLPP, MSCCLPP_MEMORY, PERFETTO


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
def classic_text() -> str:
    return msccl_file.dump(msccl.export(plan(), segments=2, threadblocks=3).program)


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
    """Of rank 1, one at a time. (A flush may be: where the bytes have come back, the NIC has read them.)"""
    raw = json.loads(plus_text())
    for block in raw["gpus"][1]["threadblocks"]:
        for i, op in enumerate(list(block["ops"])):
            del block["ops"][i]
            if op["name"] != "flush":
                fails("", lambda: mscclpp_run.run(mscclpp_file.load(json.dumps(raw))))
            block["ops"].insert(i, op)


@pytest.mark.parametrize("name", MSCCL)
def test_faults_in_msccl(name: str) -> None:
    mutate, message = MSCCL[name]
    algo = etree.fromstring(classic_text())
    mutate(algo)
    fails(message, lambda: msccl_run.run(msccl_file.load(etree.tostring(algo, encoding="unicode"))))


@pytest.mark.parametrize("name", CHAKRA)
def test_faults_in_chakra(name: str) -> None:
    from optcc.export import chakra

    mutate, message = CHAKRA[name]
    files = [list(chakra.load(content)) for content in chakra.export(plan())]
    mutate(files)
    again = [chakra.load(chakra.dump(nodes)) for nodes in files]
    fails(message, lambda: chakra_run.run(again))


@pytest.mark.parametrize("name", PERFETTO)
def test_faults_in_traces(name: str) -> None:
    mutate, message = PERFETTO[name]
    raw = json.loads(trace_text())
    mutate(raw)
    fails(message, lambda: perfetto.run(perfetto.load(json.dumps(raw))))


def test_connections_of_one_message_still_do() -> None:
    """Order, not depth, keeps it from a deadlock."""
    msccl_run.run(msccl_file.load(classic_text()), depth=1)


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


@pytest.mark.parametrize(
    ("limit", "change"),
    [
        ("channels", lambda p: replace(p, channels=33)),
        ("threadblocks of GPU 0", lambda p: replace(p, gpus=(p.gpus[0] * 65,))),
        ("on one channel", lambda p: replace(p, gpus=((p.gpus[0][0],) * 33,))),
        ("steps in threadblock 0", lambda p: replace(p, gpus=((_steps(p, 65),),))),
        ("chunks in a step", lambda p: replace(p, gpus=((_steps(p, 1, cnt=72),),))),
        (
            "XML elements",
            lambda p: replace(p, channels=8, gpus=(tuple(replace(_steps(p, 64), chan=i % 8) for i in range(64)),)),
        ),
    ],
)
def test_limits_of_msccl(limit: str, change: Callable[[msccl_file.MscclProgram], msccl_file.MscclProgram]) -> None:
    program = msccl_file.load(classic_text())
    msccl_file.check_limits(program)
    fails(limit, lambda: msccl_file.check_limits(change(program)))


def _steps(program: msccl_file.MscclProgram, count: int, **values: Any) -> msccl_file.MscclThreadblock:
    block = program.gpus[0][0]
    return replace(block, steps=(replace(block.steps[0], **values),) * count)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"collective": "allreduce", "inplace": true}', "<algo/>"])
def test_other_files_are_refused(text: str) -> None:
    for load in (mscclpp_file.load, msccl_file.load, perfetto.load):
        fails("cannot be read", lambda load=load: load(text))  # type: ignore[misc]


@pytest.mark.parametrize("content", [b"", b"\x00", b"\x07\n\x050.0.9", b"\xff" * 40])
def test_other_traces_are_refused(content: bytes) -> None:
    from optcc.export import chakra

    fails("cannot be read", lambda: chakra.load(content))
