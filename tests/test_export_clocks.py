"""Clocks of executors against what was measured, and against what can be told by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import pytest

import optcc
from optcc.errors import InputError, SimulationError
from optcc.export import formats, mscclpp, mscclpp_clock
from optcc.export.chunks import Chunked, chunked, finer
from optcc.export.mscclpp_clock import MSCCLPP, TimedStep, TimedThreads, check_places, native_ring_s
from optcc.plans.plan import Plan
from optcc.schedule.inside import InsideServers
from optcc.values.cluster import Cluster

MIB = 2**20
GPUS = replace(Cluster.uniform(servers=1, nics=2, gpus=2, rate="400Gb/s", nvlink_rate="450GB/s"), gpu_ranks=True)
"""Two H100s of one host, 18 NVLinks each."""
HOSTS = Cluster.uniform(servers=2, rate="370GB/s")
"""The same two by port channels, whose proxies copy over NVLink: the rate that such copies reach."""


RUNS = {1: 4, 16: 16, 256: 32}
"""By MiB, of the plans that were measured; plans have more today."""


@cache
def gpus(mib: int, segments: int | None = None) -> Plan:
    made = optcc.plan(GPUS, mib * MIB, segments=segments)
    assert isinstance(made.recipe, InsideServers)
    return replace(made, recipe=replace(made.recipe, chunks=RUNS[mib]))


@cache
def hosts(mib: int, segments: int) -> Plan:
    return optcc.plan(HOSTS, mib * MIB, segments=segments)


@cache
def slow(ranks: int, segments: int) -> Plan:
    """One rank at half of 1 Gb/s. Which one it was was not written down; it is the fourth here."""
    cluster = Cluster.uniform(servers=ranks, rate="1Gb/s").degrade("server3/nic0", 0.5)
    return optcc.plan(cluster, 64 * MIB, segments=segments)


def rounded(made: Plan, chunks: int, split: int = 1) -> Chunked:
    cut = finer(chunked(made, chunks=chunks, unit=16), split, 16)
    assert cut is not None
    return cut


def plus(made: Plan, chunks: int, blocks: int, split: int = 1) -> float:
    """Seconds of a file with so many threadblocks, each split in several."""
    program = mscclpp.build(rounded(made, chunks, split), blocks * split)
    assert len(program.gpus[0].threadblocks) == blocks * split
    return mscclpp_clock.seconds(program, made.cluster, made.bound.nbytes)


def split(made: Plan, chunks: int, parts: int, blocks: int) -> float:
    """Seconds of a file of so many chunks, each split in parts, dealt out to so many threadblocks."""
    program = mscclpp.build(rounded(made, chunks, parts), blocks)
    return mscclpp_clock.seconds(program, made.cluster, made.bound.nbytes)


def seconds_of(gigabytes: float) -> float:
    """Of 256 MiB at a bus bandwidth: two ranks."""
    return 256 * MIB / (gigabytes * 1e9)


# Measured in November 2026: MSCCL++ 0.9.0 (1f5f065d), NCCL 2.28.9 on two H100s of one host, CUDA 13; NCCL's of 16 MiB
# on two H200s; "slow": network namespaces joined by veth with tbf at 1 Gb/s, one rank at half (docs/exports.md).
MEASURED: dict[str, tuple[float, Callable[[], float]]] = {
    "MSCCL++, memory, 256 MiB, 4 threadblocks": (seconds_of(43.7), lambda: plus(gpus(256), 4, 4)),
    "MSCCL++, memory, 256 MiB, 8 threadblocks": (seconds_of(85), lambda: plus(gpus(256), 16, 8)),
    "MSCCL++, memory, 256 MiB, 8 split in 8": (seconds_of(316), lambda: plus(gpus(256), 16, 8, 8)),
    "MSCCL++, memory, 1 MiB, 4 threadblocks": (32e-6, lambda: plus(gpus(1), 4, 4)),
    "MSCCL++, port, 256 MiB, 8 threadblocks": (seconds_of(151), lambda: plus(hosts(256, 64), 16, 8)),
    "MSCCL++, port, 256 MiB, 8 split in 4": (seconds_of(208), lambda: plus(hosts(256, 64), 16, 8, 4)),
    "MSCCL++, port, 1 MiB, 8 segments": (147e-6, lambda: plus(hosts(1, 8), 16, 8)),
    "MSCCL++, port, 1 MiB, 64 segments": (967e-6, lambda: plus(hosts(1, 64), 128, 9)),
    "MSCCL++, memory, 256 MiB, as exported": (seconds_of(305), lambda: split(gpus(256), 16, 8, 96)),
    "MSCCL++, memory, 1 MiB, as exported": (19.7e-6, lambda: split(gpus(1, 2), 16, 8, 48)),
    "MSCCL++, port, 256 MiB, as exported": (1.249e-3, lambda: split(hosts(256, 16), 64, 1, 20)),
    "MSCCL++, port, 1 MiB, as exported": (48e-6, lambda: split(hosts(1, 1), 8, 1, 2)),
    "NCCL, 256 MiB": (seconds_of(299), lambda: native_ring_s(GPUS, 256 * MIB) or 0),
    "NCCL, 16 MiB": (73.7e-6, lambda: native_ring_s(GPUS, 16 * MIB) or 0),
    "NCCL, 1 MiB": (13.5e-6, lambda: native_ring_s(GPUS, MIB) or 0),
    "NCCL, slow, 8 ranks": (2.178, lambda: native_ring_s(slow(8, 64).cluster, 64 * MIB) or 0),
    "NCCL, slow, 4 ranks": (1.745, lambda: native_ring_s(slow(4, 64).cluster, 64 * MIB) or 0),
}


@pytest.mark.parametrize("what", MEASURED)
def test_clocks_are_within_15_percent_of_what_was_measured(what: str) -> None:
    measured, told = MEASURED[what]
    assert told() == pytest.approx(measured, rel=0.15)


def test_a_clock_with_another_rate_is_not() -> None:
    program = mscclpp.build(rounded(gpus(256), 4), 4)
    wrong = mscclpp_clock.seconds(program, GPUS, 256 * MIB, replace(MSCCLPP, put_rate=MSCCLPP.put_rate * 4))
    assert wrong < 0.85 * MEASURED["MSCCL++, memory, 256 MiB, 4 threadblocks"][0]


# The machine under the clock


def test_those_who_move_share_a_link_fairly_and_keep_to_their_own_cap() -> None:
    machine = TimedThreads()
    link = machine.resource(10)
    machine.thread().append(TimedStep(nbytes=8, cap=4, one=link))  # alone with its cap: 2 s
    machine.thread().append(TimedStep(nbytes=24, one=link))  # what is left: 6 for 2 s, then 10
    assert machine.seconds() == pytest.approx(2 + 12 / 10)


def test_a_lock_is_first_come_first_served() -> None:
    machine = TimedThreads()
    lock = machine.lock()
    for start in (0.5, 0.0):
        machine.thread().extend([TimedStep(pause=start), TimedStep(lock=lock, pause=1)])
    assert machine.seconds() == pytest.approx(2)


def test_counters_come_with_their_delay() -> None:
    machine = TimedThreads()
    counter = machine.counter()
    machine.thread().extend([TimedStep(pause=1, post=counter, delay=2), TimedStep(post=counter)])
    machine.thread().append(TimedStep(wait=counter, need=2, pause=1))
    assert machine.seconds() == pytest.approx(4)


def test_what_waits_for_ever_is_said() -> None:
    machine = TimedThreads()
    machine.thread().append(TimedStep(wait=machine.counter(), need=1))
    with pytest.raises(SimulationError, match="for ever"):
        machine.seconds()
    with pytest.raises(SimulationError, match="without a rate"):
        machine.resource(0)


# What is written


@pytest.mark.parametrize(("mib", "share"), [(256, 0.95), (1, 0.5)])
def test_files_for_two_gpus_are_as_fast_as_they_have_to_be(mib: int, share: float) -> None:
    """By the clock: of NCCL's bandwidth."""
    told = mscclpp.export(gpus(mib)).seconds
    assert told is not None
    assert told <= MEASURED[f"NCCL, {mib} MiB"][0] / share


def test_a_file_slower_than_the_native_ring_has_a_warning(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Two servers of which one has half a NIC: as narrow as can be, and as chosen."""
    write = partial(formats.write, slow(4, 16), "mscclpp", tmp_path / "out")
    narrow, wide = write(segments=16, threadblocks=5), write()
    assert narrow.native_s is not None
    assert narrow.predicted_s is not None
    assert wide.predicted_s is not None
    assert wide.predicted_s <= narrow.predicted_s
    for done in (narrow, wide):
        assert bool(done.warnings) == (done.predicted_s > narrow.native_s)
        assert all("times as long as NCCL's own ring" in warning for warning in done.warnings)


def test_a_dead_nic_that_the_executor_takes_is_said(tmp_path) -> None:  # type: ignore[no-untyped-def]
    made = optcc.plan(Cluster.uniform(servers=3, nics=2, rate="1GB/s").degrade("server1/nic0"), MIB, segments=1)
    done = formats.write(made, "mscclpp", tmp_path / "out")
    assert done.predicted_s is None
    assert "NIC that is dead" in done.warnings[0]


def test_servers_whose_ranks_would_use_each_others_nics_are_refused() -> None:
    """NIC (rank mod ranks of its own server) is a rank's own where the ranks before are a multiple of those."""
    one = Cluster.uniform(servers=1, nics=4, gpus=4, rate="1GB/s", nvlink_rate="10GB/s").servers[0]
    half = replace(one, name="half", nics=one.nics[:2], gpus=2)
    half = replace(half, nics=tuple(replace(nic, gpu=None) for nic in half.nics))
    check_places(Cluster((one, half), gpu_ranks=True))
    with pytest.raises(InputError, match="more GPUs first") as caught:
        check_places(Cluster((half, one), gpu_ranks=True))
    assert (caught.value.where, caught.value.got) == ("server0", "2 ranks before it")
    three = replace(half, name="three", gpus=3)
    with pytest.raises(InputError, match="No order"):
        check_places(Cluster((one, three), gpu_ranks=True))
    check_places(Cluster((half, one)))  # servers as ranks: one each
    with pytest.raises(InputError, match="each other's NICs"):
        mscclpp.export(optcc.plan(Cluster((half, one), gpu_ranks=True), MIB, segments=1))
