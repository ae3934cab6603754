"""Schedules on GPU memory, with `cuda_twin` in the GPU's place: the contract of wires, whole runs, faults, order."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from optcc import plan
from optcc.cli import main
from optcc.errors import InputError
from optcc.machine.rdma import NicAddress
from optcc.runtime.compiled.choice import ChunkPath, engines, warm
from optcc.runtime.control.fault_injection import FaultInjector
from optcc.runtime.control.job import Job
from optcc.runtime.control.launch import run_schedules
from optcc.runtime.devices import gpu_memory, memory
from optcc.runtime.devices.cuda_memory import CudaMemory
from optcc.runtime.devices.gpu_memory import GpuPath, PathChoice
from optcc.runtime.devices.host import dtype_of, reduction_of
from optcc.runtime.engine.program import program_of
from optcc.runtime.errors import TransportError
from optcc.runtime.evidence.payload import fill, is_exact, reference
from optcc.runtime.flows.flows import FlowTransport
from optcc.runtime.flows.timeouts import Timeouts
from optcc.runtime.messages import Strike
from optcc.runtime.verbs import gpu_paths
from optcc.runtime.wires.contract import HEADER_BYTES, FlowSpec
from optcc.runtime.wires.cuda import CudaWires
from optcc.runtime.wires.cuda_slots import CudaSlots, room_for
from optcc.runtime.wires.layout import Layout, layout_of
from optcc.runtime.wires.local import LocalWires
from optcc.schedule import Schedule
from optcc.values.cluster import Cluster
from tests.cuda_twin import TwinGpu, device_view, find_twins, host_view
from tests.test_wires import EmulatedContract, LocalJob, layout
from tests.wires_contract import SLOT_BYTES, Pipe, joined

COMMAND = ["run", "uniform:servers=3,nics=2,rate=200Mb/s", "--device", "cuda"]


def connect(it: Layout, watches: Sequence[Any], memories: Sequence[CudaMemory], kind: type = CudaWires) -> list[Any]:
    """The ends of all ranks, in this process."""
    return joined(
        it.ranks,
        lambda rank, exchange: kind(
            memories[rank], rank, it.wires, it.flows, it.rates, exchange=exchange, watch=watches[rank]
        ),
    )


class End:
    """A rank's end for the contract: payloads are bytes, slots are put together from where their parts are.

    One thread drives both ranks, and only one of them looks at its GPU while it waits; so the GPU is not slow here.
    """

    def __init__(self, wires: CudaWires) -> None:
        self._wires = wires

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wires, name)

    def write(self, wire: int, flow: int, seq: int, header: bytes, payload: memoryview, ready: float) -> None:
        self._wires.write(wire, flow, seq, header, device_view(np.asarray(payload)), ready)
        self._settle()

    def credit(self, wire: int, flow: int, folded: int) -> None:
        self._wires.credit(wire, flow, folded)
        self._settle()

    def _settle(self) -> None:
        self._wires.gpu.wait()
        self._wires._settle()

    def slot(self, flow: int, seq: int) -> memoryview:
        parts = bytes(self._wires.slot(flow, seq)), host_view(self._wires.payload(flow, seq, SLOT_BYTES)).tobytes()
        return memoryview(b"".join(parts))


class CudaJob(LocalJob):
    """Both ranks of the contract, each with a twin of its own."""

    def __init__(self, rate: float = math.inf) -> None:
        self.watches = [Pipe(), Pipe()]
        self.memory = [memoryview(os.urandom(64 * 64 + SLOT_BYTES)) for _ in range(2)]
        self.gpus = [TwinGpu(seed) for seed in range(2)]
        self.ranks = [End(end) for end in connect(layout(rate), self.watches, [CudaMemory(gpu) for gpu in self.gpus])]

    def close(self) -> None:
        super().close()
        assert [gpu.mapped for gpu in self.gpus] == [0, 0], "left mapped"


class TestCuda(EmulatedContract):
    reads_records = False

    @pytest.fixture
    def job(self) -> Iterator[Any]:
        before = len(os.listdir("/proc/self/fd"))
        job = CudaJob()
        yield job
        job.close()
        assert len(os.listdir("/proc/self/fd")) == before, "left open"


class HastyNotice(CudaWires):
    """Does not wait until a chunk has been copied."""

    def write(self, *args: Any) -> None:
        super().write(*args)
        self._copying = deque(copying._replace(event=Now()) for copying in self._copying)


class HastyCredit(CudaWires):
    """Does not wait until chunks have been folded."""

    credit = LocalWires.credit  # type: ignore[assignment]


class Now:
    done = True


def run(
    schedule: Schedule,
    dtype: str = "float32",
    op: str = "sum",
    *,
    strikes: Sequence[Strike] = (),
    kind: type = CudaWires,
    window: int = 4,
    compiled: bool = False,
    gpus: Sequence[TwinGpu] = (),
) -> tuple[list[bool], list[str]]:
    """(exact by rank, kinds of what was noted) of one operation, a thread per rank."""
    path = ChunkPath("compiled" if compiled else "python")
    warm(path)  # before anybody waits
    asked, elements = reduction_of(op), dtype_of(dtype)
    it = layout_of({"it": schedule}, 4096)
    flows = tuple(FlowSpec(f.src, f.dst, f.wires, window, f.slot_bytes) for f in it.flows)
    it = Layout(it.ranks, it.nics, it.wires, flows, it.lanes)
    count, ranks = schedule.nbytes // elements.itemsize, schedule.ranks
    expected = reference(count, elements, ranks=ranks, op=asked.fold)
    memories = [CudaMemory(gpu) for gpu in gpus or [TwinGpu(rank) for rank in range(ranks)]]
    watches = [Pipe() for _ in range(ranks)]
    ends = connect(it, watches, memories, kind)
    transports: list[FlowTransport] = []
    exact, left, failed = [False] * ranks, [ranks], []
    ready, lock = threading.Barrier(ranks, timeout=20), threading.Lock()

    def teller(rank: int) -> Callable[[int, Any], None]:
        def tell(to: int, value: Any) -> None:
            memories[rank].wait()
            transports[to].message(rank, value)
            watches[to].speak()

        return tell

    for rank in range(ranks):
        timeouts = Timeouts(progress=0.3, grace=0.2, answer=0.1)
        transports.append(
            FlowTransport(rank, it, {"it": schedule.routes}, ends[rank], teller(rank), time.monotonic, timeouts)
        )

    def one(rank: int) -> None:
        try:
            here, transport = memories[rank], transports[rank]
            program = program_of(schedule, rank, elements.itemsize)
            buffer = here.empty(count, elements)
            values = here.staging(buffer)
            fill(values, rank=rank, ranks=ranks, op=asked.fold)
            here.load(buffer, values)
            transport.begin("it", program.receives)
            engine_of = engines(path, transport, ends[rank])
            engine = engine_of(program, buffer, asked.fold, transport, time.monotonic, here)
            ready.wait()
            engine.run(FaultInjector(rank, it, strikes, ends[rank], transport.journal, time.monotonic))
            exact[rank] = is_exact(here.unload(buffer), expected)
            with lock:
                left[0] -= 1
            while left[0] and not failed:
                engine.serve(time.monotonic() + 0.01)
        except BaseException as error:
            failed.append(error)
            ready.abort()

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for end in (*ends, *watches, *(here.gpu for here in memories)):
        end.close()
    if failed:
        raise failed[0]
    return exact, [note.kind for transport in transports for note in transport.journal]


def degraded(nbytes: int = 1 << 18) -> Schedule:
    cluster = Cluster.uniform(servers=4, nics=2, rate=100_000_000).degrade("server1/nic0", Fraction(1, 2))
    return plan(cluster, nbytes, segments=4).schedule()


@pytest.mark.parametrize(
    ("dtype", "op"), [("float32", "sum"), ("bfloat16", "max"), ("int8", "prod"), ("uint64", "min")]
)
def test_a_whole_run_is_exact(dtype: str, op: str) -> None:
    assert run(degraded(), dtype, op) == ([True] * 4, [])


@pytest.mark.parametrize(("kind", "window"), [(HastyNotice, 4), (HastyCredit, 1)])
def test_who_does_not_wait_for_the_gpu_comes_out_wrong(kind: type, window: int) -> None:
    assert all(run(degraded(), window=window)[0])
    try:
        exact, _ = run(degraded(), kind=kind, window=window)
    except Exception:
        return  # a chunk that is another one: noticed even earlier
    assert not all(exact)


@pytest.mark.parametrize(
    ("dtype", "op"), [("float32", "sum"), ("bfloat16", "max"), ("int8", "prod"), ("uint64", "min")]
)
def test_a_whole_compiled_run_is_exact(dtype: str, op: str) -> None:
    gpus = [TwinGpu(rank) for rank in range(4)]
    schedule = degraded()
    assert run(schedule, dtype, op, compiled=True, gpus=gpus) == ([True] * 4, [])
    received = sum(-(-int(length) // 4096) for length in schedule.length)
    assert sum(gpu.launched for gpu in gpus) > received  # of its chunks, most are copied and folded by compiled code


def test_a_ticket_before_its_work_comes_out_wrong() -> None:
    gpus = [TwinGpu(rank) for rank in range(4)]
    for gpu in gpus:
        gpu.hasty = True
    try:
        exact, _ = run(degraded(), compiled=True, gpus=gpus, window=1)
    except Exception:
        return  # a chunk that is another one: noticed even earlier
    assert not all(exact)


def test_a_kernel_that_the_driver_refuses_ends_the_run() -> None:
    gpus = [TwinGpu(rank) for rank in range(4)]
    for gpu in gpus:
        gpu.refuses = 719
    with pytest.raises(TransportError, match="refuses a kernel: CUresult 719"):
        run(degraded(), compiled=True, gpus=gpus)


@pytest.mark.parametrize("strike", ["cut", "hole", "retries", "receiver", "no acks"])
@pytest.mark.parametrize("compiled", [False, True], ids=["python", "compiled"])
def test_a_lost_nic_is_survived(strike: str, compiled: bool) -> None:
    nic = degraded().ports[-1].name
    exact, noted = run(degraded(), strikes=[Strike(strike, nic, 0.4)], compiled=compiled)
    assert exact == [True] * 4
    assert "struck" in noted
    assert "moved" in noted


def test_a_room_is_used_again_and_grows() -> None:
    here = CudaMemory(TwinGpu())
    first = here.room(1000)
    assert here.room(10).address == first.address
    assert here.room(2000).nbytes >= 2000
    assert here.room(1000).nbytes >= 2000


def test_slots_lie_apart_and_are_aligned() -> None:
    flows = (FlowSpec(0, 1, (0,), 3, 1000), FlowSpec(1, 0, (1,), 2, 8), FlowSpec(0, 1, (0,), 2, 8))
    gpu = TwinGpu()
    slots = CudaSlots(1, flows, gpu.empty(room_for(1, flows), np.dtype(np.uint8)))
    taken = [slots.payload(flow, seq, flows[flow].slot_bytes) for flow in (0, 2) for seq in range(flows[flow].window)]
    starts = [part.address - taken[0].address for part in taken]
    assert all(start % 256 == 0 for start in starts)
    assert all(b - a >= part.nbytes for a, b, part in zip(starts, starts[1:], taken, strict=False))
    assert starts[-1] + taken[-1].nbytes <= room_for(1, flows)
    assert slots.payload(0, 3, 5).address == taken[0].address
    assert slots.size(0) == HEADER_BYTES + 1000
    assert (0 in slots, 1 in slots) == (True, False)
    slots.close()


def test_verbs_take_no_gpu_memory_yet() -> None:
    with pytest.raises(InputError, match="no NIC is given GPU memory yet"):
        Job({"it": degraded()}, "float32", "sum", False, "verbs", device="cuda")
    with pytest.raises(InputError, match="no such device"):
        Job({"it": degraded()}, "float32", "sum", False, device="tpu")


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the ranks' processes find twins for GPUs."""
    find_twins(monkeypatch)


@pytest.mark.usefixtures("twins")
def test_processes_are_exact() -> None:
    results = run_schedules({"it": degraded()}, dtype="int32", op="avg", repeat=1, device="cuda", path="python")
    assert results["it"].exact == (True,) * 4


@pytest.mark.usefixtures("twins")
def test_a_fault_run_on_the_command_line() -> None:
    done = CliRunner().invoke(main, [*COMMAND, "--size", "1MiB", "--repeat", "1", "--cut", "server1/nic0@0.4"])
    assert done.exit_code == 0, done.output
    assert "note: path of chunks: " in done.stderr
    assert "note: ranks " in done.stderr  # share GPUs, or take turns


@pytest.mark.usefixtures("twins")
def test_processes_over_the_compiled_path_are_exact() -> None:
    results = run_schedules({"it": degraded()}, dtype="float16", op="avg", repeat=2, device="cuda", path="compiled")
    assert results["it"].exact == (True,) * 4


def refused() -> int:
    raise gpu_memory.PathRefusedError("no NVIDIA driver (libcuda.so.1 is missing)")


@pytest.mark.parametrize(
    ("library", "count", "said"),
    [
        (None, lambda: 1, "cupy is not installed"),
        ("cupy", refused, "no NVIDIA driver"),
        ("cupy", lambda: 0, "the driver has no GPU"),
    ],
)
def test_what_is_missing_is_said(
    library: str | None, count: Callable[[], int], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory.importlib.util, "find_spec", lambda name: library)
    monkeypatch.setattr(gpu_memory, "gpu_count", count)
    with pytest.raises(InputError, match=said):
        memory.check_device("cuda")
    for fault in ((), ("--cut", "server1/nic0@0.4")):
        done = CliRunner().invoke(main, [*COMMAND, *fault])
        assert done.exit_code == 2, done.output
        assert said in done.stderr
    memory.check_device("cpu")


def test_the_doctor_tries_every_gpu_with_every_nic() -> None:
    def attempt(gpu: int, nic: NicAddress) -> PathChoice:
        if nic.device == "mlx5_1" and gpu == 1:
            raise OSError("its firmware has ended")
        return PathChoice(nic.device, gpu, GpuPath.DMABUF if gpu else GpuPath.STAGED, {})

    found = gpu_paths.examine_pairs(2, [NicAddress("mlx5_0"), NicAddress("mlx5_1")], attempt)
    assert [(f.part, f.present) for f in found] == [
        ("GPU 0 by mlx5_0", False),
        ("GPU 0 by mlx5_1", False),
        ("GPU 1 by mlx5_0", True),
        ("GPU 1 by mlx5_1", False),
    ]
    assert "OSError: its firmware has ended" in found[3].seen
    assert all(f.get for f in found if not f.present)
