"""The native engine over queue pairs: right bits whatever befalls the NICs, buffers that no NIC reads any more, nothing
left behind. Over played NICs on any machine, and over the lab's, where no C is compiled and paths do not break singly.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import shutil
import socket
import subprocess
import sys
import time
from ctypes import byref, c_uint32, c_uint64, c_void_p
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from optcc.machine.rdma import LIBRARY, PLAYED_FABRIC
from optcc.runtime.devices.host import Op
from optcc.runtime.native.library import VerbsState
from tests import native_build
from tests import native_replay as native
from tests import native_verbs as verbs
from tests.effort import cases
from tests.native_verbs import Job, Strike, drawn, mixed, planned, played, rings
from tests.verbs.conftest import addresses

pytestmark = pytest.mark.rdma
COMPILES = "OPTCC_LAB" not in os.environ or os.environ["OPTCC_LAB"] == "played"
needs_compiler = pytest.mark.skipif(not COMPILES, reason="the lab has no compiler: run outside of it")
HEADER = Path("/usr/include/infiniband/verbs.h")
CALLS = (("float32", Op.SUM), ("int32", Op.SUM))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine: compiled here, with warnings as errors, or in the lab the one of the project."""
    if COMPILES and shutil.which("cc"):
        return native_build.build(tmp_path_factory.mktemp("native"))
    from optcc.machine.native import LIBRARY as BUILT

    return BUILT


def libibverbs() -> str:
    """The played one as a path, real ones by their name."""
    if PLAYED_FABRIC not in os.environ:
        return LIBRARY
    from optcc.fabric.played import NAME
    from optcc.fabric.played import library as folder

    return str(Path(os.environ.get("PLAYED_LIBRARY") or folder()) / NAME)


def job(ground: Any, network: Any, *strikes: Strike, **more: Any) -> Job:
    made = Job(ground, addresses(), CALLS, network=network, verbs=libibverbs())
    for name, value in more.items():
        setattr(made, name, value)
    made.strikes = strikes
    return made


def right(made: Job, library: Path) -> verbs.Outcome:
    """What came of a job that must end well, without a receive that was not there."""
    before = made.network.troubles().get("not_ready", 0)
    outcome = played(made, library)
    assert not outcome.fault, "\n".join((outcome.fault, *map(str, made.strikes), *outcome.errors))
    assert made.network.troubles().get("not_ready", 0) == before
    return outcome


# --- while nothing fails -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "nics"), [(2, 1), (2, 2), (2, 4), (3, 2), (3, 4), (4, 3), (8, 1)])
def test_all_have_the_right_bits(network: Any, library: Path, ranks: int, nics: int) -> None:
    outcome = right(job(rings(ranks, nics), network, calls=native.CALLS, suspect_s=1.0), library)
    assert outcome.counters["left"] == outcome.counters["resent_segments"] == 0
    assert all(outcome.carried), "every NIC has carried something"


@needs_compiler
def test_ranks_with_unlike_numbers_of_nics(network: Any, library: Path) -> None:
    right(job(mixed(), network, calls=native.CALLS, suspect_s=1.0), library)


@needs_compiler
@pytest.mark.parametrize(("ranks", "nics"), [(2, 2), (3, 3), (4, 3)])
def test_what_the_planner_makes(network: Any, library: Path, ranks: int, nics: int) -> None:
    for ground in planned(ranks, nics):
        right(job(ground, network, suspect_s=1.0), library)


@needs_compiler
def test_nics_that_go_by_lid(library: Path) -> None:
    command = [sys.executable, "-m", "tests.native_verbs", "--library", str(library), "--lid", "1", "2", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=native.ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


# --- what befalls NICs ---------------------------------------------------------------------------------------------


def test_whatever_befalls_nics_nothing_is_lost_or_doubled_and_all_return(network: Any, library: Path) -> None:
    """Random moments. What has ended is not read any more: the process would not survive it (`verbs.Buffers`)."""
    kinds = verbs.KINDS if PLAYED_FABRIC in os.environ else tuple(kind for kind in verbs.KINDS if kind != "path")
    total = dict.fromkeys(native.COUNTERS, 0)
    for seed in range(cases(200)):
        outcome = right(drawn(seed, addresses(), network, libibverbs(), kinds), library)
        for name, value in outcome.counters.items():
            total[name] += value
    assert total["left"] > 0, "no fault has hit"
    assert total["returned"] > 0, "nothing has returned"
    assert total["resent_segments"] > 0, "nothing was under way"


PATIENT: dict[str, Any] = {"suspect_s": 30.0, "patience_s": 15.0}
"""Silence tells nothing: 30 s until a wire is doubted, and all ends sooner."""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_link_is_told_at_once(network: Any, library: Path, rank: int) -> None:
    """A NIC would find out by itself after 30 s. What goes by its other wires is not doubted either."""
    strike = Strike("cut", rank=rank, at=5, nic=2 * rank + 1, lasts_s=0.5)
    outcome = right(job(rings(2, 2), network, strike, timeout=20, **PATIENT), library)
    assert outcome.counters["left"] == 2


def test_a_silent_loss_is_told_by_the_nic(network: Any, library: Path) -> None:
    strike = Strike("both", rank=0, at=5, nic=1, lasts_s=0.5)
    outcome = right(job(rings(2, 2), network, strike, timeout=8, **PATIENT), library)
    assert outcome.counters["left"] == 2


def test_a_silent_loss_is_noticed_before_the_nic_tells(network: Any, library: Path) -> None:
    """Its NIC would need 30 s. The fence takes its payloads from it, while it still tries to send them."""
    strike = Strike("both", rank=0, at=5, nic=1, lasts_s=0.6)
    outcome = right(job(rings(2, 2), network, strike, timeout=20, returns=True, patience_s=15.0), library)
    assert outcome.counters["left"] >= 2


@pytest.mark.parametrize("kind", ["cut", "both", "out", "in"])
def test_the_only_nic_is_waited_for(network: Any, library: Path, kind: str) -> None:
    """Where no other wire is left nobody can tell the peer: it hears the knock although its own end still stands."""
    strike = Strike(kind, rank=0, at=5, nic=0, lasts_s=0.4)
    outcome = right(job(rings(2, 1), network, strike, timeout=8, returns=True), library)
    if kind == "cut":  # the others may be over before anybody notices
        assert min(outcome.epochs) > 1


def test_a_nic_that_has_returned_carries(network: Any, library: Path) -> None:
    """Many times: each life has other packet numbers, and both ends have the same."""
    strikes = [Strike("cut", rank=i % 2, at=5 + 4 * i, nic=i % 2, lasts_s=0.05) for i in range(6)]
    calls = [*CALLS, *CALLS]
    outcome = right(job(rings(2, 1), network, *strikes, calls=calls, returns=True, patience_s=15.0), library)
    assert min(outcome.epochs) > 3


def small_rows() -> Any:
    """Rows far shorter than segments: a window holds more of them than a wire has receives."""
    from optcc.values.cluster import Cluster
    from tests.fabrics import ring

    made = ring(Cluster.uniform(servers=2, nics=1, rate=native.RATE_OF_A_NIC), 1 << 14, segments=64)
    return native.Ground("small rows", [("ring", made)])


PAUSE = Strike("pause", rank=1, at=0, nic=1, lasts_s=0.3)


def test_a_reader_that_is_away_never_lacks_a_receive(network: Any, library: Path) -> None:
    outcome = right(job(small_rows(), network, PAUSE, replace(PAUSE, at=10)), library)
    assert outcome.counters["left"] == 0


@needs_compiler
def test_a_device_that_is_gone_is_left_for_good(network: Any, library: Path) -> None:
    """It gives back nothing that was posted, and does not return to those who had opened it."""
    strike = Strike("gone", rank=0, at=5, nic=1, lasts_s=0.1)
    outcome = right(job(rings(2, 2), network, strike, patience_s=15.0), library)
    assert outcome.counters["left"] == 2


@needs_compiler
def test_a_device_that_gives_nothing_back_is_fenced_all_the_same(
    network: Any, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps the receives of a queue pair in error (7 of `tests.test_fabric.MUTANTS`): after a second it is reset."""
    from optcc.fabric.played import NAME, build

    kept = str(build(tmp_path, ["-DPLAYED_MUTANTS"]) / NAME)
    monkeypatch.setenv("PLAYED_MUTANT", "7")
    strike = Strike("cut", rank=0, at=5, nic=1, lasts_s=0.1)
    outcome = right(job(rings(2, 2), network, strike, verbs=kept, returns=True), library)
    assert outcome.counters["left"] == 2
    assert outcome.epochs[1] > 1


@pytest.mark.parametrize("missing", [(1,), (0, 2), (1, 3, 5)])
def test_a_nic_that_is_missing_at_the_start_is_done_without(network: Any, library: Path, missing: tuple[int]) -> None:
    """Wires go from the first NICs to the first ones, and from the second to the second."""
    outcome = right(job(rings(3, 2), network, missing=missing), library)
    assert not any(outcome.carried[nic] for nic in missing)
    assert all(outcome.carried[nic] for nic in range(6) if nic % 2 != missing[0] % 2)


def test_a_link_that_is_down_at_the_start_is_used_when_it_comes(network: Any, library: Path) -> None:
    network.cut(1)
    strike = Strike("heal", rank=0, at=10, nic=1)
    outcome = right(job(rings(2, 2), network, strike, returns=True, patience_s=15.0), library)
    assert outcome.carried[1] > 0


# --- nothing is left behind ----------------------------------------------------------------------------------------


def held(network: Any) -> tuple[int, str]:
    return len(os.listdir("/proc/self/fd")), network.held()


def resident() -> int:
    """Bytes of memory that this process has, without what it has freed, whose place a leak could take."""
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_and_close(library: Path, made: Job, times: int) -> None:
    """Both ends in this process, joined; nothing runs."""
    lib = verbs.load(library)
    memory = np.zeros(1 << 20, np.uint8)
    for _ in range(times):
        both = [verbs.open_wires(lib, made, rank) for rank in range(2)]
        for one in both:
            verbs.checked(lib, lib.optcc_verbs_register(one, memory.ctypes.data, memory.nbytes))
        told = [handle(lib, one, 1 - rank) for rank, one in enumerate(both)]
        for rank, one in enumerate(both):
            verbs.checked(lib, lib.optcc_verbs_join(one, 1 - rank, told[1 - rank], len(told[1 - rank])))
        engines = [verbs.open_engine(lib, made, one) for one in both]
        for engine in engines:
            lib.optcc_progress(engine)
            lib.optcc_close(engine)
        for one in both:  # what is registered goes with it
            lib.optcc_verbs_close(one)


def handle(lib: Any, one: c_void_p, peer: int) -> bytes:
    room, length = ctypes.create_string_buffer(verbs.HANDLE_BYTES), c_uint64(verbs.HANDLE_BYTES)
    verbs.checked(lib, lib.optcc_verbs_handle(one, peer, room, byref(length)))
    return room.raw[: length.value]


def leaves_nothing(library: Path, network: Any, times: int = 100) -> bool:
    """Whether opening and closing so often leaves neither descriptors nor objects of devices nor memory."""
    made = job(rings(2, 2), network)
    open_and_close(library, made, 10)
    gc.collect()  # what tests before have left, and would else close its descriptors in between
    before, memory = held(network), resident()
    open_and_close(library, made, times)
    return held(network) == before and resident() < memory + times * 100_000  # each has a megabyte while it is open


@pytest.mark.skipif("OPTCC_LAB" in os.environ and not COMPILES, reason="counts what played NICs hold")
def test_opening_and_closing_leaves_nothing(network: Any, library: Path) -> None:
    assert leaves_nothing(library, network)


# --- what is refused -----------------------------------------------------------------------------------------------


def refusal(library: Path, made: Job) -> str:
    with pytest.raises(AssertionError) as told:
        verbs.open_wires(verbs.load(library), made, 0)
    return str(told.value)


def test_settings_that_cannot_be_are_refused(network: Any, library: Path) -> None:
    for name, value, says in (
        ("segment", 12, "segments of 12 bytes: expected a multiple of 8"),
        ("timeout", 32, "timeout 32, retries 6: expected 1 to 31 and 0 to 6"),
        ("retries", 7, "expected 1 to 31 and 0 to 6"),
        ("ahead", 0, "ahead 0: expected how many payloads a NIC may have at once"),
        ("missing", (0, 1), "none of 2 NICs is there: no RDMA device missing"),
        ("verbs", "libnone.so.1", "libnone.so.1 cannot be loaded"),
        ("verbs", "libc.so.6", "libc.so.6 has no ibv_get_device_list: expected rdma-core's library"),
    ):
        assert says in refusal(library, job(rings(2, 2), network, **{name: value}))
    crossed = job(rings(2, 2), network)
    crossed.wires[0][0].lane, crossed.wires[0][1].lane = 1, 0
    assert "wire 0, lane 1 to rank 1: expected lanes from 0 in their order" in refusal(library, crossed)


@needs_compiler
def test_real_nics_are_not_taken_for_played_ones(
    network: Any, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the environment names a fabric and a library that is not its own, whatever devices that one has."""
    from optcc.fabric.played import NAME, build

    other = str(build(tmp_path, ["-Dplayed_get=nobodys_get"]) / NAME)
    made = job(rings(2, 2), network, verbs=other)
    assert "is not the played one, though PLAYED_FABRIC is set" in refusal(library, made)
    monkeypatch.delenv(PLAYED_FABRIC)
    assert "none of 2 NICs is there" in refusal(library, made)


def test_handles_that_are_not_the_peers_are_refused(network: Any, library: Path) -> None:
    """Every word of a handle, changed; and cut anywhere. The right one is taken after all of them."""
    lib = verbs.load(library)
    made = job(rings(2, 2), network)
    mine, other = (verbs.open_wires(lib, made, rank) for rank in range(2))
    told = handle(lib, other, 0)
    meant = handle(lib, mine, 1)
    assert len(told) == 32 + 2 * 48
    for length in (0, 1, 31, 32, len(told) - 1):
        assert lib.optcc_verbs_join(mine, 1, told[:length], length) == native.BAD
    checked = [0, 4, 8, 12, 16, 20, 24, *(32 + 48 * lane + at for lane in range(2) for at in (0, 4, 8))]
    for at in checked:
        wrong = bytearray(told)
        wrong[at] ^= 1
        assert lib.optcc_verbs_join(mine, 1, bytes(wrong), len(wrong)) == native.BAD, at
        assert b"rank 1" in lib.optcc_verbs_why()
    for at in (12, 16, 20, 24):  # of lane 0: numbers of queue pairs, key, packet; too large
        wrong = bytearray(told)
        wrong[32 + at + 3] |= 0x80
        assert lib.optcc_verbs_join(mine, 1, bytes(wrong), len(wrong)) == native.BAD, at
    assert lib.optcc_verbs_join(mine, 1, meant, len(meant)) == native.BAD
    assert lib.optcc_verbs_join(mine, 0, told, len(told)) == native.BAD
    verbs.checked(lib, lib.optcc_verbs_join(mine, 1, told, len(told)))
    assert lib.optcc_verbs_join(mine, 1, told, len(told)) == native.BAD
    assert lib.optcc_verbs_why() == b"rank 1 has been joined before"
    short = c_uint64(10)
    assert lib.optcc_verbs_handle(mine, 1, ctypes.create_string_buffer(10), byref(short)) == native.BAD
    assert short.value == len(told)
    for one in (mine, other):
        lib.optcc_verbs_close(one)


def test_memory_that_was_not_registered_is_told(network: Any, library: Path) -> None:
    made = job(rings(2, 2), network, unregistered=True, patience_s=5.0)
    outcome = played(made, library)
    assert outcome.fault.startswith("exit codes")
    assert any("is not registered on" in text for text in outcome.errors)


def joined(lib: Any, made: Job) -> tuple[list[c_void_p], list[c_void_p], list[bytes]]:
    """Both ends of a job of two ranks in this process: wires, engines, handles."""
    both = [verbs.open_wires(lib, made, rank) for rank in range(2)]
    told = [handle(lib, one, 1 - rank) for rank, one in enumerate(both)]
    for rank, one in enumerate(both):
        verbs.checked(lib, lib.optcc_verbs_join(one, 1 - rank, told[1 - rank], len(told[1 - rank])))
    return both, [verbs.open_engine(lib, made, one) for one in both], told


def begin(lib: Any, made: Job, rank: int, engine: c_void_p, buffer: Any) -> Any:
    """Begin a sum of int32; the program, to be closed."""
    program = native.program(lib, made.schedule, rank, made.segment, made.ground.lanes(made.schedule))
    assert lib.optcc_begin(engine, program, native.call(buffer, "int32", Op.SUM)) == native.OK
    return program


def falls_asleep(lib: Any, one: Any, engine: Any) -> Any:
    """Go on until there is nothing to do; what tells of more."""
    sleeper = select.poll()
    sleeper.register(lib.optcc_verbs_fd(one), select.POLLIN)
    limit = time.monotonic() + verbs.PATIENCE_S
    while lib.optcc_verbs_arm(one) != native.OK or sleeper.poll(0):
        lib.optcc_progress(engine)
        time.sleep(0.0005)  # where time is virtual it passes only so
        assert time.monotonic() < limit, "it is woken time and again"
    return sleeper


def test_a_device_that_is_gone_wakes_nobody(network: Any, library: Path) -> None:
    """Nobody reads what it tells, which comes after it was given up."""
    lib = verbs.load(library)
    both, engines, _ = joined(lib, job(rings(2, 2), network))
    falls_asleep(lib, both[0], engines[0])
    assert lib.optcc_verbs_cut(both[0], c_uint32(0), 1) == native.OK
    time.sleep(0.05)
    falls_asleep(lib, both[0], engines[0])
    for engine, one in zip(engines, both, strict=True):
        lib.optcc_close(engine)
        lib.optcc_verbs_close(one)


def test_the_descriptor_wakes_for_whatever_comes(network: Any, library: Path) -> None:
    """A datagram of the peer; a link that goes."""
    lib = verbs.load(library)
    made = job(rings(2, 1), network)
    both, engines, _ = joined(lib, made)
    sleeper = falls_asleep(lib, both[0], engines[0])
    buffer = np.ones(made.schedule.nbytes // 4, np.int32)
    program = begin(lib, made, 1, engines[1], buffer)
    assert sleeper.poll(1000 * verbs.PATIENCE_S)
    sleeper = falls_asleep(lib, both[0], engines[0])
    network.cut(0)
    assert sleeper.poll(1000 * verbs.PATIENCE_S)
    for engine, one in zip(engines, both, strict=True):
        lib.optcc_close(engine)
        lib.optcc_verbs_close(one)
    lib.optcc_program_close(program)


def most_in_hand(library: Path, network: Any, bytes_per_s: int) -> tuple[int, float]:
    """How many payloads a NIC has at most in a collective, at two ranks in this process. How long one then sleeps that
    may for 30 ms and has nothing to do."""
    lib = verbs.load(library)
    made = job(rings(2, 1), network, bytes_per_s=bytes_per_s, segment=1024)
    both, engines, _ = joined(lib, made)
    buffers = [np.ones(made.schedule.nbytes // 4, np.int32) for _ in range(2)]
    for one, buffer in zip(both, buffers, strict=True):
        verbs.checked(lib, lib.optcc_verbs_register(one, buffer.ctypes.data, buffer.nbytes))
    programs = [begin(lib, made, rank, engine, buffers[rank]) for rank, engine in enumerate(engines)]
    most, look, limit = 0, VerbsState(), time.monotonic() + verbs.PATIENCE_S
    while any(lib.optcc_test(engine, None) == native.AGAIN for engine in engines):
        assert time.monotonic() < limit
        for engine, one in zip(engines, both, strict=True):
            lib.optcc_progress(engine)
            lib.optcc_verbs_look(one, 0, byref(look))
            most = max(most, look.in_hand)
        time.sleep(0.0001)  # where time is virtual it passes only so
    assert all((buffer == 2).all() for buffer in buffers)
    falls_asleep(lib, both[0], engines[0])
    slept = []
    for _ in range(2):
        before = time.monotonic()
        lib.optcc_serve(engines[0], 30_000_000)
        slept.append(time.monotonic() - before)
    for engine, program, one in zip(engines, programs, both, strict=True):
        lib.optcc_close(engine)
        lib.optcc_program_close(program)
        lib.optcc_verbs_close(one)
    return most, min(slept)


def is_given_enough(library: Path, network: Any) -> bool:
    """By its rate: what would lie in front of it for longer waits, but for the payload behind the one under way. Of one
    whose rate is not known, or as fast as this, more lies there."""
    (slow, slept), (unknown, _), (fast, _) = (most_in_hand(library, network, rate) for rate in (10**6, 0, 10**12))
    return slow == 2 < min(unknown, fast) and slept > 0.02


def test_a_nic_is_given_what_it_is_about_to_send(network: Any, library: Path) -> None:
    assert is_given_enough(library, network)


def stranger_is_ignored(library: Path, network: Any) -> bool:
    """Whether datagrams of a queue pair that is no peer's change nothing: a frame as the peer would write it, which
    gives everything up, and others that are none; more of them than receives. A collective runs after them."""
    from tests.verbs.contract_rig import SEND, SEND_IMM, UD, End
    from tests.verbs.libibverbs import call

    lib = verbs.load(library)
    made = job(rings(2, 1), network)
    both, engines, told = joined(lib, made)
    number, qkey = np.frombuffer(told[0], np.uint32)[8 + 4 : 8 + 6].tolist()
    stranger, beside = (End(made.addresses[nic], kind=UD, inline=0) for nic in (2, 0))
    stranger.modify(1, pkey_index=0, port_num=stranger.nic.port, qkey=1)
    stranger.modify(2)
    stranger.modify(3, sq_psn=1)
    route = stranger.handle_to(beside)
    forged = bytes(
        native.Frame(
            magic=native.MAGIC,
            version=native.VERSION,
            kind=native.GIVEUP,
            from_=1,
            to=0,
            job=made.seed,
            epoch=1,
            word=1,
        )
    )
    for i in range(90):
        bytes_ = (forged, forged[: i + 1], forged * 2, b"\1\0\0\0\1\0\0\0")[i % 4]
        stranger.fill(0, bytes_)
        claims = (1 << 22, 1 << 22 | 1 << 16, 1023 << 22, 0)[i // 4 % 4] | i
        how = {"imm": socket.htonl(claims)} if i % 3 else {}
        opcode = SEND_IMM if i % 3 else SEND
        assert stranger.post(opcode, i, [(0, len(bytes_))], a=route, b=number | qkey << 32, **how) == 0
        assert [done.status for done in stranger.wait(1)] == [0]
        lib.optcc_progress(engines[0])
    buffers = [np.ones(made.schedule.nbytes // 4, np.int32) for _ in range(2)]
    for one, buffer in zip(both, buffers, strict=True):
        verbs.checked(lib, lib.optcc_verbs_register(one, buffer.ctypes.data, buffer.nbytes))
    try:
        programs = [begin(lib, made, rank, engine, buffers[rank]) for rank, engine in enumerate(engines)]
    except AssertionError:  # rank 0 has given up
        return False
    limit = time.monotonic() + verbs.PATIENCE_S
    while any(lib.optcc_test(engine, None) == native.AGAIN for engine in engines) and time.monotonic() < limit:
        for engine in engines:
            lib.optcc_progress(engine)
        time.sleep(0.0001)  # where time is virtual it passes only so
    fine = all(lib.optcc_test(engine, None) == native.OK for engine in engines)
    refused = native.Counters()
    lib.optcc_count(engines[0], byref(refused))
    call("ibv_destroy_ah", route)
    for end in (stranger, beside):
        end.close()
    for engine, program, one in zip(engines, programs, both, strict=True):
        lib.optcc_close(engine)
        lib.optcc_program_close(program)
        lib.optcc_verbs_close(one)
    return fine and not refused.refused and all((buffer == 2).all() for buffer in buffers)


def test_a_stranger_is_not_heard(network: Any, library: Path) -> None:
    assert stranger_is_ignored(library, network)


# --- the binary interface; sanitizers ------------------------------------------------------------------------------


@needs_compiler
def test_structs_are_those_of_the_library(tmp_path: Path) -> None:
    """As the played library has them, and rdma-core's header where it is installed."""
    told: list[str] = []
    for header in (native_build.NATIVE / "verbs.h", native.ROOT / "fabric" / "verbs_abi.h", HEADER):
        if not header.exists():
            assert header == HEADER
            continue
        program = tmp_path / f"abi{len(told)}"
        source = native.ROOT / "tests" / "native_abi.c"
        subprocess.run(["cc", f'-DABI="{header}"', str(source), "-o", str(program)], check=True, timeout=60)
        told.append(subprocess.run([program], capture_output=True, text=True, check=True, timeout=60).stdout)
    assert len(told[0].splitlines()) == 96
    assert all(one == told[0] for one in told)


@needs_compiler
@pytest.mark.whole
def test_sanitizers_find_nothing() -> None:
    """In the engine, its wires and the played library."""
    command = [sys.executable, "-m", "tests.native_verbs", "--sanitize", *map(str, range(12))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, cwd=native.ROOT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


# --- mutants: each of these bugs must be found ---------------------------------------------------------------------


class Mutant(NamedTuple):
    """Edits of native/wires_verbs.c, and the name of the scene that must find them."""

    scene: str
    edits: tuple[tuple[str, str], ...]


LEFT_TOO_EARLY = (
    ("    uint64_t now_ns, look_ns;", "    uint32_t early[4096], earlies;\n    uint64_t now_ns, look_ns;"),
    ("    n->in_hand++;\n", "    n->in_hand++;\n    v->early[v->earlies++] = w->index;\n"),
    ("    return done->status == IBV_WC_SUCCESS;\n", "    return 0;\n"),
    (
        "    if (++v->polls >= LOOK_POLLS)\n",
        "    if (v->earlies) {\n"
        "        *event = (struct optcc_event){.news = OPTCC_LEFT, .wire = v->early[--v->earlies]};\n"
        "        return;\n"
        "    }\n"
        "    if (++v->polls >= LOOK_POLLS)\n",
    ),
)
MUTANTS = {
    "LEFT is said when a payload is posted": Mutant("unacknowledged", LEFT_TOO_EARLY),
    "a fence leaves the NIC what it has": Mutant(
        "silent",
        (
            ("if (w->is != FENCING || w->sends || w->receives)", "if (w->is != FENCING)"),
            ("(w->nic->gone || into(v, w->pair, IBV_QPS_ERR))", "0"),
        ),
    ),
    "the ends count packets of a new life differently": Mutant(
        "returns",
        ((".sq_psn = packet_of(w->first_packet, life)", ".sq_psn = packet_of(w->first_packet, life + life / 2)"),),
    ),
    "a knock comes too late for the first data of a life": Mutant(
        "returns", (("head->kind == OPTCC_KNOCK || head->kind == OPTCC_WELCOME", "head->kind == OPTCC_WELCOME"),)
    ),
    "a returned link is never asked for": Mutant(
        "returns", (("port.state != IBV_PORT_ACTIVE", "port.state == IBV_PORT_ACTIVE"),)
    ),
    "a lost link is not told": Mutant(
        "link",
        (
            (
                "if (event->type == IBV_EVENT_PORT_ERR || (",
                "if ((",
            ),
        ),
    ),
    "a failed send is not told": Mutant(
        "silence told",
        (
            (
                "w->ends.peer, w->nic->name.device, done->status, done->vendor_err);\n    lose(v, w);",
                "w->ends.peer, w->nic->name.device, done->status, done->vendor_err);",
            ),
        ),
    ),
    "nobody counts the peer's receives": Mutant(
        "away", (("if ((uint16_t)(w->given - w->taken_there) >= v->receives) {", "if (0) {"),)
    ),
    "what was taken is not told": Mutant("away", (("w->ends.lane << 16 | w->taken_here", "w->ends.lane << 16"),)),
    "the head lies where the next one goes": Mutant(
        "healthy", (("w->place = w->place + 1 == v->receives ? 0 : w->place + 1;", ""),)
    ),
    "what comes with data is not taken, and nobody asks": Mutant(
        "healthy",
        (
            ("        take_immediate(w, done->imm_data, w->life);\n", "        ;\n"),
            ("        ask_for_receives(v, w);\n", "        (void)ask_for_receives;\n"),
        ),
    ),
    "datagrams of anybody are taken": Mutant(
        "stranger", (("w->joined && w->nic == n && w->far.control_number == done->src_qp", "w->joined"),)
    ),
    "a NIC is given more than it is about to send": Mutant(
        "rates", (("    n->waits = n->shared->in_hand", "    n->waits = 0 * n->shared->in_hand"),)
    ),
    "a NIC is always busy": Mutant(
        "rates",
        (
            ("    if (!n->name.bytes_per_s)\n        return;\n", ""),
            ("packets) * UINT64_C(1000000000) / n->name.bytes_per_s", "packets) * UINT64_C(1000000000) / 1000"),
        ),
    ),
    "a sleeper gets up at once": Mutant(
        "rates", (("it_value = {.tv_sec = (time_t)(until_ns", "it_value = {.tv_sec = (time_t)(ns"),)
    ),
    "a queue pair is left behind": Mutant("leaks", (("        v->call.destroy_qp(n->control);\n", "        ;\n"),)),
    "the slots are not given back": Mutant("leaks", (("    free(n->memory);\n", ""),)),
}
HASTY: dict[str, Any] = {"patience_s": 8.0, "crashes": True}


def scene_job(scene: str, network: Any) -> Job:
    match scene:
        case "unacknowledged":  # what has landed is not acknowledged to the NIC, which reads it again
            strikes = [Strike("acks", rank=0, at=at, nic=nic, lasts_s=0.3) for at, nic in ((3, 0), (3, 2))]
            return job(rings(2, 2), network, *strikes, timeout=8, **HASTY)
        case "silent":
            strike = Strike("both", rank=0, at=5, nic=1, lasts_s=0.6)
            return job(rings(2, 2), network, strike, timeout=13, returns=True, **HASTY)
        case "returns":
            strikes = [Strike("cut", rank=i % 2, at=5 + 4 * i, nic=i % 2, lasts_s=0.05) for i in range(2)]
            return job(rings(2, 1), network, *strikes, timeout=8, returns=True, **HASTY)
        case "link":
            strike = Strike("cut", rank=0, at=5, nic=1, lasts_s=1.0)  # and the NIC tries again after 17 s
            return job(rings(2, 2), network, strike, timeout=22, suspect_s=30.0, **HASTY)
        case "silence told":
            strike = Strike("both", rank=0, at=5, nic=1, lasts_s=0.5)
            return job(rings(2, 2), network, strike, timeout=8, suspect_s=30.0, **HASTY)
        case "away":
            return job(small_rows(), network, PAUSE, **HASTY)
        case _:  # long, and with nobody who is doubted for being slow
            return job(rings(2, 2, 1 << 20), network, window=65536, suspect_s=30.0, **HASTY)


def finds(library: Path, scene: str, network: Any) -> bool:
    if scene == "rates":
        return not is_given_enough(library, network)
    if scene == "stranger":
        return not stranger_is_ignored(library, network)
    if scene == "leaks":
        child = get_context("fork").Process(target=lambda: sys.exit(not leaves_nothing(library, network, 30)))
        child.start()
        child.join(120)
        return child.exitcode != 0
    made = scene_job(scene, network)
    before = network.troubles()["not_ready"]
    return any(played(made, library).fault or network.troubles()["not_ready"] > before for _ in range(3))


@needs_compiler
def test_the_scenes_find_nothing_where_nothing_is_wrong(network: Any, library: Path) -> None:
    for scene in sorted({mutant.scene for mutant in MUTANTS.values()}):
        assert not finds(library, scene, network), scene


QUICK = ("LEFT is said when a payload is posted", "nobody counts the peer's receives", "a queue pair is left behind")
"""The others are tried in the long tests."""


@needs_compiler
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.whole) for name in MUTANTS]
)
def test_a_mutant_is_found(name: str, network: Any, tmp_path: Path) -> None:
    mutant = MUTANTS[name]
    source = native_build.planted(tmp_path, *[native_build.Mutant("wires_verbs.c", *edit) for edit in mutant.edits])
    assert finds(native_build.build(tmp_path, source, native_build.LOOSE), mutant.scene, network)
