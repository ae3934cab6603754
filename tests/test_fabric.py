"""The played fabric: the binary interface, never found by accident, and whether the contract notices a wrong one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from optcc.errors import InputError
from optcc.fabric.played import NAME, SOURCE, PlayedFabric, build, library
from tests.free_port import free_port

pytestmark = pytest.mark.cc
ROOT = Path(__file__).resolve().parent.parent
HEADER = Path("/usr/include/infiniband/verbs.h")
CONTRACT = "tests/verbs/test_contract.py"
OVER_GPUS = "4097 or gathered or atomics or beyond or no_more or second_life or (lost and not gone)"
"""Tests of the contract whose bytes lie in a GPU's memory as well."""

PERFTEST = (
    *("write_bw", "send_bw", "read_bw", "atomic_bw", "write_lat", "send_lat", "read_lat", "atomic_lat"),
    *("write_bw -c UC", "send_lat -c UC"),
)

MUTANTS = {
    1: ("loses one completion in 64", "keep_their_order"),
    2: ("swaps two completions", "keep_their_order"),
    3: ("changes a byte of a large frame", "a_write_goes"),
    4: ("lets one byte more be reached than is registered", "beyond_a_region"),
    5: ("ignores what a region was registered for", "a_region_allows"),
    6: ("completes what did not ask for it", "only_what_is_signaled"),
    7: ("flushes no receives", "an_error_flushes"),
    8: ("gives every queue pair the machine's rate", "share_the_rate"),
    9: ("does not wait at a fence", "a_fence_waits"),
    10: ("waits for a receive for ever", "stays_missing"),
    11: ("takes packets out of order for the next ones", "packets_that_are_lost"),
    12: ("tells of what is not solicited", "asked_for_solicited"),
    13: ("adds twice what is asked for twice", "added_once"),
    14: ("does not tell of a link that goes", "goes_and_comes"),
    15: ("completes what lacks a packet", "with_a_hole"),
}
"""Number in fabric/*.c -> what is wrong with that fabric, and tests of the contract that must notice."""


@pytest.fixture
def fabric(tmp_path: Path) -> Iterator[PlayedFabric]:
    made = PlayedFabric.make(tmp_path / "fabric", hosts=2, nics=2, rate=125_000_000)
    yield made
    made.remove()


def contract(folder: Path, chosen: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The contract suite over a library of one's own, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", "-k", chosen, CONTRACT],
        env={**os.environ, "PLAYED_LIBRARY": str(folder), "CONTRACT_PATIENCE_S": "5", **env},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=ROOT,
    )


@pytest.mark.perftest
def test_the_binary_interface_is_the_distributions(tmp_path: Path) -> None:
    told = []
    for header in (str(SOURCE / "verbs_abi.h"), str(HEADER)):
        program = tmp_path / f"abi{len(told)}"
        source = ROOT / "tests" / "fabric_abi.c"
        subprocess.run(["cc", f'-DABI="{header}"', str(source), "-o", str(program)], check=True, timeout=60)
        told.append(subprocess.run([program], capture_output=True, text=True, check=True, timeout=60).stdout)
    assert told[0].splitlines() == told[1].splitlines()
    assert len(told[0].splitlines()) > 90


def test_the_symbols_and_versions_are_those_that_programs_ask_for() -> None:
    played = symbols(library() / NAME)
    theirs = Path(f"/usr/lib/{os.uname().machine}-linux-gnu/{NAME}")
    assert {"ibv_open_device@IBVERBS_1.1", "ibv_reg_mr_iova2@IBVERBS_1.8", "ibv_qp_to_qp_ex@IBVERBS_1.6"} <= played
    if theirs.exists():
        public = {name for name in symbols(theirs) if "PRIVATE" not in name and "@IBVERBS_1.0" not in name}
        assert public - played <= {"ibv_register_driver@IBVERBS_1.1"}


def symbols(path: Path) -> set[str]:
    """Exported functions with their versions."""
    lines = subprocess.run(["objdump", "-T", str(path)], capture_output=True, text=True, check=True).stdout.splitlines()
    parts = [line.split() for line in lines if "*UND*" not in line and "IBVERBS" in line]
    return {f"{p[-1]}@{p[-2].strip('()')}" for p in parts}


def test_without_its_environment_there_are_no_devices() -> None:
    script = (
        f"import ctypes; lib = ctypes.CDLL({str(library() / NAME)!r}); n = ctypes.c_int(7);"
        "lib.ibv_get_device_list(ctypes.byref(n)); print(n.value)"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PLAYED_")}

    def devices(**env: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-c", script], env={**clean, **env}, capture_output=True, text=True, timeout=60, check=True
        )
        return int(done.stdout), done.stderr

    assert devices() == (0, "")
    count, told = devices(PLAYED_FABRIC="/nowhere", PLAYED_HOST="0")
    assert count == 0
    assert "No such file" in told
    assert "PLAYED_HOST" in devices(PLAYED_FABRIC="/nowhere")[1]


def test_devices_are_those_of_the_host(fabric: PlayedFabric) -> None:
    fabric.down("host1/mlx5_0")
    script = (
        "from optcc.machine.rdma import rdma_ports; print([(p.device, p.lid, p.state, p.played) for p in rdma_ports()])"
    )
    for host, expected in ((0, [(1, "ACTIVE"), (2, "ACTIVE")]), (1, [(3, "DOWN"), (4, "ACTIVE")])):
        done = subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, **fabric.env(host)}, capture_output=True, text=True,
            timeout=60, check=True, cwd=ROOT,
        )  # fmt: skip
        assert done.stdout.strip() == str([(f"mlx5_{i}", *seen, True) for i, seen in enumerate(expected)])


def test_a_fabrics_environment_without_its_library_is_refused(fabric: PlayedFabric, tmp_path: Path) -> None:
    """The NICs of its folder would be looked for among real ones."""
    topology = tmp_path / "two.yaml"
    servers = [{"name": f"server{i}", "nics": [{"name": f"mlx5_{i}", "rate": "1Gb/s"}]} for i in range(2)]
    topology.write_text(f"optcc: 1\nservers: {json.dumps(servers)}\n")
    env = {**os.environ, **fabric.env(0)}
    command = [sys.executable, "-m", "optcc", "run", str(topology), "--transport", "verbs", "--size", "64KiB"]

    def run(path: str) -> subprocess.CompletedProcess[str]:
        env["LD_LIBRARY_PATH"] = path
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)

    refused = run("")
    assert refused.returncode != 0
    assert "is not the played one" in refused.stderr or "cannot be loaded" in refused.stderr
    assert run(str(library())).returncode == 0, "with it, it runs"


def test_a_fabric_is_changed_and_looked_at(fabric: PlayedFabric) -> None:
    fabric.set("host1/mlx5_0", rate=62_500_000, latency_s=2e-6, jitter_s=1e-6)
    fabric.set("host0/mlx5_1", rate_in=1000)
    fabric.lose("host0/mlx5_0", way="in", one_in=7)
    nic = fabric.nic("host1/mlx5_0")
    assert (nic.rate_out, nic.rate_in) == (62_500_000, 62_500_000)
    assert (nic.latency_s, nic.jitter_s) == (pytest.approx(2e-6), pytest.approx(1e-6))
    assert (fabric.nic("host0/mlx5_0").lose_in, fabric.nic("host0/mlx5_0").lose_out) == (7, 0)
    left = [[(nic.out_rate, nic.in_rate) for nic in server.nics] for server in fabric.cluster().servers]
    assert left == [[(125_000_000,) * 2, (125_000_000, 1000)], [(62_500_000,) * 2, (125_000_000,) * 2]]
    fabric.down("host1/mlx5_0")
    assert fabric.cluster().servers[1].nics[0].out_rate == 0
    fabric.up("host1/mlx5_0")
    assert fabric.nic("host1/mlx5_0").state == "up"
    for wrong in ("host2/mlx5_0", "mlx5_0", "host0/mlx5_2"):
        with pytest.raises(InputError, match="no such NIC"):
            fabric.down(wrong)
    with pytest.raises(InputError, match="cannot be made"):
        PlayedFabric.make(fabric.folder)
    with pytest.raises(InputError, match="optcc fabric make"):
        PlayedFabric(fabric.folder / "other")


def test_the_command_line_does_the_same(tmp_path: Path) -> None:
    where = ("--fabric", str(tmp_path / "f"))

    def optcc(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "optcc", "fabric", *arguments, *where], capture_output=True, text=True, timeout=120,
            check=False, cwd=ROOT,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert json.loads(optcc("make", "--hosts", "2", "--nics", "2", "--rate", "1Gb/s", "--json"))["played"]
    assert "export PLAYED_HOST=1\n" in optcc("env", "--host", "1")
    optcc("set", "host1/mlx5_0", "host1/mlx5_1", "--rate", "500Mb/s")
    optcc("hole", "host0/mlx5_0", "--way", "out")
    nics = json.loads(optcc("watch", "--times", "1", "--json"))["nics"]
    assert (nics["host1/mlx5_1"]["rate_out"], nics["host0/mlx5_0"]["lose_out"]) == (62_500_000, 1)
    optcc("up", "host0/mlx5_0")
    assert json.loads(optcc("bound", "--size", "1MiB", "--json"))["bound_s"] == pytest.approx(2**20 / 125e6)
    optcc("remove")
    assert not (tmp_path / "f").exists()


def test_a_ring_that_nobody_who_keeps_to_the_rules_wrote_is_not_believed(tmp_path: Path) -> None:
    """The far end's frame says that it is longer than it can be: the queue pair is in error, the process goes on."""
    script = """
import glob, mmap, os, struct, sys, time
from tests.verbs import libibverbs as verbs
from tests.verbs.contract_rig import End
from optcc.machine.rdma import rdma_ports
a, b = ends = [End(port.address()) for port in rdma_ports()[:2]]
for end in ends: end.initialise()
for end, far in ((a, b), (b, a)): end.to(far)
b.receive(3, [(0, 8)])
file = os.open(os.path.join(os.environ["PLAYED_FABRIC"], f"q{b.number}"), os.O_RDWR)
ring = mmap.mmap(file, 0)
frame = bytearray(ring[4096:4160])
struct.pack_into("<BBHIII", frame, 0, int(sys.argv[1]), 3, 0, a.number, 77, int(sys.argv[2]))
ring[4096:4160] = bytes(frame)
ring[0:8] = struct.pack("<Q", int(sys.argv[3]))
assert b.wait(1)[0][:2] == (3, 5), "flushed"
assert b.state() == verbs.QPS_ERR and 1 in b.events()
for end in ends: end.close()
"""
    for kind, length, head in ((1, 2**31, 64), (99, 0, 64), (1, 5000, 64), (1, 0, 2**40), (1, 0, 63)):
        fabric = PlayedFabric.make(tmp_path / f"f{kind}-{length}-{head}", hosts=1, nics=2)
        done = subprocess.run(
            [sys.executable, "-c", script, str(kind), str(length), str(head)], env={**os.environ, **fabric.env(0)},
            capture_output=True, text=True, timeout=120, check=False, cwd=ROOT,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        fabric.remove()


def carried(fabric: PlayedFabric, command: list[str], **more: str) -> int:
    """The bytes that went between the first NICs of two hosts, of a program that is server and client."""

    def run(host: int, *given: str) -> subprocess.Popen[str]:
        env = {**os.environ, **fabric.env(host), **more}
        return subprocess.Popen([*command, *given], env=env, stdout=-1, stderr=-2, text=True)

    server = run(0)
    for _ in range(100):  # until the server listens
        client = run(1, "127.0.0.1")
        told = client.communicate(timeout=60)[0]
        if client.returncode == 0 or server.poll() is not None:
            break
        time.sleep(0.1)
    assert client.returncode == 0, told
    assert server.wait(60) == 0
    server.communicate()
    return sum(fabric.nic(f"host{host}/mlx5_0").counters["bytes_in"] for host in range(2))


@pytest.mark.perftest
@pytest.mark.parametrize("name", PERFTEST)
def test_perftests_tools_run_over_it_unchanged(fabric: PlayedFabric, name: str) -> None:
    tool, *connection = name.split()
    went = carried(fabric, [f"ib_{tool}", *connection, "-d", "mlx5_0", "-n", "50", "-p", str(free_port())])
    assert went >= 400 or not tool.endswith("bw")


@pytest.mark.perftest
def test_short_messages_waste_nothing_of_a_nic_s_way_in(tmp_path: Path) -> None:
    """One host sends long messages, another one short ones, which overtake. Writes had 3.3 MB/s of 8 where each short
    message made the NIC forget how much of a long one was in. A busy machine has three tries."""
    fabric = PlayedFabric.make(tmp_path / "fabric", hosts=3, nics=1, rate=8_000_000)
    try:
        found = [beside_short_messages(fabric)]
        while found[-1] < 6.4 and len(found) < 3:
            found.append(beside_short_messages(fabric))
        assert found[-1] >= 6.4, found
    finally:
        fabric.remove()


def beside_short_messages(fabric: PlayedFabric) -> float:
    """MB/s of writes from host 0 to host 1, which exchanges short messages with host 2."""
    short = ["ib_send_lat", "-s", "100", "-D", "60", "-p", str(free_port())]
    long = ["ib_write_bw", "-s", "131072", "-D", "2", "-p", str(free_port())]
    started: list[subprocess.Popen[str]] = []

    def start(host: int, *command: str) -> subprocess.Popen[str]:
        env = {**os.environ, **fabric.env(host)}
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return started[-1]

    try:
        start(1, *short)
        start(1, *long)
        time.sleep(0.5)
        start(2, *short, "localhost")
        time.sleep(0.5)
        told = start(0, *long, "localhost").communicate(timeout=60)[0]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    rows = [line.split() for line in told.splitlines() if line.split()[:1] == ["131072"]]
    assert rows, told
    return float(rows[0][3]) * 1.048576


@pytest.mark.ucx
def test_ucx_runs_over_it_unchanged(fabric: PlayedFabric, tmp_path: Path) -> None:
    """It asks for a file of each NIC, which a library that is preloaded tells it of."""
    place, source = tmp_path / "place.so", ROOT / "benchmarks" / "nccl_place.c"
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(place), "-ldl"], check=True, timeout=60)
    went = carried(
        fabric,
        ["ucx_perftest", "-t", "tag_bw", "-s", "65536", "-n", "20", "-w", "2", "-p", str(free_port())],
        LD_PRELOAD=str(place),
        UCX_TLS="rc_verbs,ud_verbs",
        UCX_NET_DEVICES="mlx5_0:1",
    )
    assert went >= 20 * 65536


def test_the_contract_names_every_mutant() -> None:
    text = "".join((SOURCE / name).read_text(encoding="utf-8") for name in ("nic.c", "verbs.c", "fabric.c"))
    assert [number for number in range(1, 100) if f"MUTANT({number})" in text] == list(MUTANTS)


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that is wrong in the way that PLAYED_MUTANT says."""
    return build(tmp_path_factory.mktemp("wrong"), ["-DPLAYED_MUTANTS"])


@pytest.mark.long
@pytest.mark.parametrize("number", MUTANTS)
def test_the_contract_notices_a_wrong_fabric(number: int, wrong: Path) -> None:
    what, where = MUTANTS[number]
    done = contract(wrong, where, PLAYED_MUTANT=str(number))
    assert done.returncode == 1, f"a fabric that {what} passes: {done.stdout[-2000:]}"
    assert " failed" in done.stdout


@pytest.fixture
def no_gpu(tmp_path: Path) -> dict[str, str]:
    """An environment whose CUDA driver has a GPU that is none."""
    made = tmp_path / "libcuda.so.1"
    source = ROOT / "tests" / "fake_cuda.c"
    flags = ("-Wall", "-Wextra", "-shared", "-fPIC", f"-Wl,-soname,{made.name}")
    subprocess.run(["cc", *flags, str(source), "-o", str(made)], check=True, timeout=60)
    return {"LD_PRELOAD": str(made), "CONTRACT_MEMORY": "gpu"}


def test_the_contract_holds_for_memory_of_a_gpu(no_gpu: dict[str, str]) -> None:
    """Of one that is played: what is not copied by the NIC's own process, through the driver, ends in a fault."""
    done = contract(library(), OVER_GPUS, **no_gpu, CONTRACT_PATIENCE_S="60")
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


@pytest.mark.gpu
def test_the_contract_holds_for_memory_of_a_real_gpu() -> None:
    done = contract(library(), OVER_GPUS, CONTRACT_MEMORY="gpu", CONTRACT_PATIENCE_S="60")
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


BUSY_GPU = """
import threading, time
from ctypes import c_uint64, c_void_p, byref, CDLL, c_size_t
import cupy, cupyx, numpy
from optcc.machine.rdma import rdma_ports
from tests.verbs.contract_rig import End, payload
source = 'extern "C" __global__ void spin(volatile int *flag) { while (!*flag) __nanosleep(1000); }'
kernel = cupy.RawKernel(source, "spin")
flag = cupyx.zeros_pinned(1, numpy.int32)
flag[0] = 1
stream = cupy.cuda.Stream(non_blocking=True)
def spin():
    with stream:
        kernel((8,), (1,), (numpy.uint64(flag.ctypes.data),))
spin()
stream.synchronize()
driver, context, victim = CDLL("libcuda.so.1"), c_void_p(), c_uint64()
assert driver.cuCtxGetCurrent(byref(context)) == 0 == driver.cuMemAlloc_v2(byref(victim), c_size_t(32 << 20))
a, b = ends = [End(port.address()) for port in rdma_ports()[:2]]
for end in ends: end.initialise()
for end, far in ((a, b), (b, a)): end.to(far)
a.fill(0, payload(300_000, 1))
flag[0] = 0
spin()
def free():
    driver.cuCtxSetCurrent(context)
    driver.cuMemFree_v2(victim)
freeing = threading.Thread(target=free)
freeing.start()
time.sleep(0.5)
waits = freeing.is_alive()
assert a.write(1, [(0, 300_000)], b, 0) == 0
try:
    assert a.wait(1, 30)[0][:2] == (1, 0)
    assert not stream.done, "it went while a kernel ran"
finally:
    flag[0] = 1
assert waits, "cuMemFree waited for the kernel all that time"
freeing.join()
assert b.bytes_at(0, 300_000) == payload(300_000, 1)
for end in ends: end.close()
"""


@pytest.mark.gpu
def test_gpu_memory_is_copied_while_a_kernel_runs_and_its_user_waits_in_the_driver(tmp_path: Path) -> None:
    fabric = PlayedFabric.make(tmp_path / "fabric", hosts=1, nics=2)
    env = {**os.environ, **fabric.env(0), "CONTRACT_MEMORY": "gpu"}
    done = subprocess.run(
        [sys.executable, "-c", BUSY_GPU], env=env, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


GPU_USER = """
import os, signal, sys
from optcc.machine.rdma import rdma_ports
from tests.verbs.contract_rig import ALL, End, GpuBytes
from tests.verbs.libibverbs import VerbsError, make
def children():
    return open(f"/proc/self/task/{os.getpid()}/children").read().split()
end = End(rdma_ports()[0].address())
(copier,) = children()
for base, length in ((end.base + (1 << 20) - 8, 16), (end.base, (1 << 20) + 1), (1 << 46, 8)):
    try:
        make("ibv_reg_mr", end.domain, base, length, ALL)
    except VerbsError:
        continue
    raise AssertionError((base, length))
if sys.argv[1] == "leaves":
    end.close()
    assert children() == []
else:
    print(copier, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_process_that_copies_gpu_memory_ends_with_its_user(fabric: PlayedFabric, no_gpu: dict[str, str]) -> None:
    def use(how: str, **more: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **fabric.env(0), **no_gpu, **more}
        return subprocess.run(
            [sys.executable, "-c", GPU_USER, how], env=env, capture_output=True, text=True, timeout=120, check=False,
            cwd=ROOT,
        )  # fmt: skip

    left = use("leaves")
    assert left.returncode == 0, left.stderr
    pid = int(use("is killed").stdout)
    until = time.monotonic() + 60
    while Path(f"/proc/{pid}/exe").exists():
        assert time.monotonic() < until, "it goes on without its user"
        time.sleep(0.05)
    refused = use("leaves", FAKE_CUDA_KEEPS_TO_ITSELF="1")
    assert refused.returncode == 1
    assert "that no other process can map" in refused.stderr


SANITIZERS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
    "thread": ("-fsanitize=thread",),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", SANITIZERS)
def test_the_contract_holds_under_the_compilers_sanitizers(kind: str, tmp_path: Path) -> None:
    build(tmp_path, [*SANITIZERS[kind], "-O1", "-fno-omit-frame-pointer"])
    runtime = {"address": "libasan.so", "thread": "libtsan.so"}[kind]
    users = tmp_path / "users"  # bytes of users' memory: what orders them is the ring, which TSan sees at two addresses
    users.write_text("race:region_copy\nrace:region_swap\n")
    where = subprocess.run(["cc", f"-print-file-name={runtime}"], capture_output=True, text=True, check=True).stdout
    done = contract(
        tmp_path,
        "test",
        LD_PRELOAD=where.strip(),
        ASAN_OPTIONS="detect_leaks=0",  # the interpreter's own
        TSAN_OPTIONS=f"halt_on_error=0 exitcode=66 log_path={tmp_path}/tsan suppressions={users}",
        CONTRACT_PATIENCE_S="60",
    )
    assert [path.read_text(errors="replace") for path in tmp_path.glob("tsan.*")] == []
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert " passed" in done.stdout, (done.stdout + done.stderr)[-3000:]
    assert " failed" not in done.stdout
