"""Wires over TCP: right bits, connections that break, peers that are not who they say; mutants."""

from __future__ import annotations

import ctypes
import faulthandler
import hmac
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from ctypes import byref, c_uint32, c_void_p
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import optcc
from optcc.runtime.devices.host import Op
from optcc.values.cluster import Cluster
from tests import native_replay as native
from tests.namespaces import Namespaces
from tests.native_build import LOOSE, Mutant, build
from tests.native_replay import BAD, LOST, OK, RATE_OF_A_NIC, Ground, ground
from tests.tcp_ranks import (
    MAX_HANDLE,
    UP,
    Job,
    Rank,
    Stranger,
    TcpConfig,
    address,
    addresses,
    armed,
    asleep,
    attack,
    break_wires,
    deceive,
    handle_of,
    in_parts,
    large,
    load,
    small,
    talk,
    two,
)

pytestmark = pytest.mark.cc


# --- right bits ----------------------------------------------------------------------------------------------------

CALLS = (("float32", Op.SUM), ("float16", Op.SUM), ("int8", Op.MAX), ("int64", Op.PROD), ("float64", Op.MIN))


def jobs() -> dict[str, Ground]:
    """Clusters of 2 to 8 ranks with 2 to 4 NICs, of which some have fewer."""

    def of(name: str, servers: int, nics: int, *dead: str) -> tuple[str, Ground]:
        cluster = Cluster.uniform(servers=servers, nics=nics, rate=RATE_OF_A_NIC)
        for one in dead:
            cluster = cluster.degrade(one)
        return name, ground(name, cluster, 98304, 2)

    return dict(
        (
            of("2 x 4", 2, 4),
            of("3 x 2", 3, 2),
            of("4 x 4, three dead", 4, 4, "server1/nic0", "server1/nic3", "server2/nic1"),
            of("8 x 2, one dead", 8, 2, "server1/nic0"),
        )
    )


@pytest.mark.parametrize("name", ["2 x 4", "3 x 2", "4 x 4, three dead", "8 x 2, one dead"])
def test_collectives_have_the_right_bits(lib: Any, name: str) -> None:
    """Every family, each with another type and operation."""
    place = jobs()[name]
    calls = [(schedule, *CALLS[i % len(CALLS)]) for i, (_, schedule) in enumerate(place.schedules)]
    turns = count()
    with Job(lib, place) as job:
        fault = job.run(calls, lambda: next(turns) < max(len(calls), 5))
        assert not fault
        assert job.total("resent_segments") == job.total("tcp_died") == job.total("tcp_refused") == 0


def test_ranks_that_connect_all_at_once_wait_for_each_other(lib: Any) -> None:
    """Each takes one stranger at a time."""
    place, turns = jobs()["8 x 2, one dead"], count()
    with Job(lib, place, strangers=1) as job:
        assert not job.run([(place.schedules[0][1], "int32", Op.SUM)], lambda: next(turns) < 2)
        assert job.total("tcp_accepted") >= sum(len(lanes) for lanes in place.wires.values())


def test_segments_that_the_kernel_takes_in_parts(lib: Any) -> None:
    assert not in_parts(lib)


def test_who_sleeps_is_woken(lib: Any) -> None:
    assert not asleep(lib)
    assert not armed(lib)


def test_ipv6_and_several_wires_between_two_nics(lib: Any) -> None:
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6")
    place = jobs()["3 x 2"]
    for lanes in place.wires.values():
        lanes += lanes[:1]
    with Job(lib, place) as job:
        for rank in range(3):
            job.ranks[rank].close()
            job.ranks[rank] = Rank(lib, rank, ["::1", "::1"], ranks=3)
        job.handles = [rank.handle for rank in job.ranks]
        assert {len(handle) for handle in job.handles} == {12 + 2 * 19 + 16}
        turns = count()
        assert not job.run([(place.schedules[0][1], "float32", Op.SUM)], lambda: next(turns) < 3)
        assert [len(rank.states()) for rank in job.ranks] == [6, 6, 6]
        assert job.total("tcp_proved") == 18


# --- connections that break ----------------------------------------------------------------------------------------


def check(lib: Any, cuts: int, seed: int) -> str:
    """What is wrong with a job whose wires break, or nothing."""
    broken = break_wires(lib, cuts, seed)
    if broken.fault:
        return broken.fault
    if not all(broken.cuts.values()) or sum(broken.cuts.values()) < cuts:
        return f"not every kind of break came: {broken.cuts}"
    if broken.counters["returned"] < cuts // 4 or broken.again_bytes < cuts * 10_000:
        return f"wires that came back carry too little: {broken}"
    return f"{broken.counters['tcp_malformed']} frames cut" if broken.counters["tcp_malformed"] else ""


def test_no_byte_is_lost_or_doubled_when_connections_break(lib: Any) -> None:
    assert not check(lib, 60, seed=1)


def test_large_segments_break_too(lib: Any) -> None:
    assert not break_wires(lib, 20, seed=1, place=large()).fault


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 3])
def test_hundreds_of_breaks(lib: Any, seed: int) -> None:
    assert not check(lib, 200, seed)


def test_seeds_break_handshakes_too(lib: Any) -> None:
    assert break_wires(lib, 40, seed=8).in_handshake


# --- links that break, between network namespaces ------------------------------------------------------------------


@pytest.fixture
def places() -> Iterator[Namespaces]:
    with Namespaces(2) as made:
        yield made


def carried(job: Job, rail: int) -> int:
    """Bytes that a rail's wires have carried both ways, as acknowledged."""
    return sum(rank.states()[rail].acked_bytes for rank in job.ranks)


@pytest.mark.namespaces
@pytest.mark.parametrize("quiet", [False, True])
def test_a_link_that_goes_down_and_comes_back(lib: Any, places: Namespaces, quiet: bool) -> None:
    """A device is set down at one end, four times; both ends leave the wire, and use it again. The kernel says so
    before anybody doubts. quiet : frames of one end are lost in its place, and nobody says so."""
    place, until = two(), time.monotonic() + 200
    calls = [(schedule, "int32", Op.SUM) for _, schedule in place.schedules]
    steps, had = ["down", "up", "used"] * 4, 0
    with Job(lib, place, places=places, handshake_ns=300_000_000) as job:

        def goes_on() -> bool:
            nonlocal had
            assert time.monotonic() < until, f"steps to do: {steps}"
            number = (len(steps) - 1) // 3
            rail, end = number % 2, number // 2
            ups = [rank.states()[rail].state == UP for rank in job.ranks]
            match steps[:1]:
                case ["down"] if all(ups):
                    (places.cut if quiet else places.set_up)(end, rail, False)
                case ["up"] if not any(ups):
                    (places.cut if quiet else places.set_up)(end, rail, True)
                    had = carried(job, rail)
                case ["used"] if all(ups) and carried(job, rail) > had + (1 << 16):
                    pass
                case _:
                    return True
            del steps[0]
            return bool(steps)

        assert not job.run(calls, goes_on, suspect_ns=50_000_000 if quiet else 8 * 10**9)
        assert not steps
        assert job.total("returned") >= 8
        assert bool(job.total("doubts")) == quiet
        assert job.total("resent_segments") or not quiet  # between calls little is under way, on a busy machine some


@pytest.mark.namespaces
def test_shares_follow_the_links_rates(lib: Any, places: Namespaces) -> None:
    """One rail has a quarter of the other's rate, and nobody says so."""
    places.set_rate(0, "80mbit")
    places.set_rate(1, "20mbit")
    cluster = Cluster.uniform(servers=2, nics=2, rate=RATE_OF_A_NIC)
    place = Ground("2 x 2", [("ring", optcc.plan(cluster, 4 << 20, segments=4).schedule())])
    turns = count()
    with Job(lib, place, places=places) as job:
        call = (place.schedules[0][1], "int32", Op.SUM)
        assert not job.run([call], lambda: next(turns) < 2, suspect_ns=5 * 10**9, window=65536)
        assert 0.1 < carried(job, 1) / (carried(job, 0) + carried(job, 1)) < 0.35


# --- peers that are not who they say -------------------------------------------------------------------------------


def test_who_knows_the_secret_is_believed(lib: Any) -> None:
    """So what `ATTACKS` do wrong is what they are refused for. The handshake here is hashlib's."""
    with_secret = Rank(lib, 1, addresses(1, 1), ranks=2)
    assert with_secret.join(0, handle_of(0, [("127.0.1.1", 1)], with_secret.segment)) == OK
    stranger = Stranger("127.0.2.1", with_secret.ports[0])
    believed = []
    thread = Thread(target=lambda: believed.append(stranger.shake(life=1)))
    thread.start()
    assert with_secret.ready() == OK
    thread.join()
    assert believed == [True]
    with_secret.close()


def test_strangers_are_refused_and_the_job_goes_on(lib: Any) -> None:
    assert not attack(lib)


def test_a_crowd_does_not_keep_the_job_out(lib: Any) -> None:
    assert not attack(lib, ["another secret", "half a handshake"], crowd=100)


def test_what_cannot_be_a_frame_ends_the_connection(lib: Any) -> None:
    assert not talk(lib, seed=1)


def test_who_listens_in_a_ranks_place_is_not_believed(lib: Any) -> None:
    assert not deceive(lib)


# --- codes, handles, arguments -------------------------------------------------------------------------------------


def test_codes_are_those_of_hashlib(lib: Any) -> None:
    draw = random.Random(1)
    for length in [*range(200), 1000, 4096, 10_001]:
        key, said, made = draw.randbytes(length % 65), draw.randbytes(length), ctypes.create_string_buffer(32)
        lib.optcc_hmac(key, len(key), said, ctypes.c_uint64(length), made)
        assert made.raw == hmac.digest(key, said, "sha256")


def test_a_handle_is_what_it_should_be_or_refused(lib: Any) -> None:
    rank = Rank(lib, 1, addresses(1, 4), ranks=3)
    handle = rank.handle
    assert handle == handle_of(1, [*zip(addresses(1, 4), rank.ports, strict=True)], rank.segment)
    assert len(handle) == 56
    room, length = ctypes.create_string_buffer(MAX_HANDLE), c_uint32(55)
    assert lib.optcc_tcp_handle(rank.tcp, room, byref(length)) == BAD
    assert length.value == 56
    other = Rank(lib, 0, addresses(0, 1), ranks=3)
    for bit in range(8 * len(handle)):
        broken = bytearray(handle)
        broken[bit // 8] ^= 1 << bit % 8
        assert other.join(1, bytes(broken)) == BAD
    for at in range(len(handle)):
        assert other.join(1, handle[:at]) == BAD
    assert other.join(1, handle + b"\0") == BAD
    assert other.join(2, handle) == BAD
    assert other.join(0, handle) == BAD
    assert other.join(3, handle) == BAD
    for wrong in (
        handle_of(1, [("127.0.2.1", 1)] * 4, 8192, bytes(32)),
        handle_of(1, [("127.0.2.1", 1)] * 4, 16384),
        handle_of(1, [("127.0.2.1", 1)] * 17, 8192),
        handle_of(1, [], 8192),
        handle_of(1, [("::1", 1)], 8192),
    ):
        assert other.join(1, wrong) == BAD
    for lanes in ([(1, 0)], [(0, 4)], [], [(0, 0)] * 65):
        assert other.join(1, handle, lanes) == BAD
    assert other.join(1, handle, [(0, 0), (0, 3)]) == OK
    assert other.join(1, handle) == BAD
    rank.close()
    other.close()


def test_arguments_that_cannot_be_are_refused(lib: Any) -> None:
    def opens(**other: Any) -> int:
        config = TcpConfig(**({"rank": 0, "ranks": 2, "nics": 1, "segment_bytes": 8192} | other))
        config.address[0] = place
        tcp = c_void_p()
        result = int(lib.optcc_tcp_open(byref(config), byref(tcp)))
        assert bool(tcp) == (result == OK)
        lib.optcc_tcp_close(tcp)
        return result

    place = address("127.0.0.1")
    assert opens() == OK
    for bad in (
        {"rank": 2},
        {"ranks": 0},
        {"ranks": 1025},
        {"nics": 0},
        {"nics": 17},
        {"nics": 2},
        {"segment_bytes": 0},
        {"segment_bytes": 12},
        {"segment_bytes": (1 << 24) + 8},
        {"unsent_bytes": 1 << 31},
        {"strangers": 1025},
    ):
        assert opens(**bad) == BAD, bad
    place = address("192.0.2.1")  # of no interface: RFC 5737
    assert opens() == BAD
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = address(*taken.getsockname())
        assert opens() == BAD
    place = address("127.0.0.1", 1 << 16)
    assert opens() == BAD


def test_a_wire_that_does_not_come_about_has_died(lib: Any) -> None:
    """Of two NICs of the peer one is away: the job runs over the other, and the engine hears of the loss."""
    place, turns = small(), count()
    with Job(lib, place, open_ns=200_000_000) as job:
        with socket.create_server(("127.0.3.2", 0), backlog=0) as dead:
            nics = [*zip(addresses(2, 2), job.ranks[2].ports, strict=True)]
            job.handles[2] = handle_of(2, [nics[0], dead.getsockname()], 8192)
        job.lossy = True
        assert not job.run([(place.schedules[0][1], "int32", Op.SUM)], lambda: next(turns) < 3)
        assert [rank.ready() for rank in job.ranks] == [LOST] * 3
        assert job.total("left") == 4


# --- sanitizers ----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_sanitizers_find_nothing() -> None:
    command = [sys.executable, "-m", "tests.tcp_ranks", "--sanitize", "--hostile", "60", "60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=native.ROOT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


# --- mutants: every one of these bugs must be found by what is above -----------------------------------------------


def bug(old: str, new: str) -> Mutant:
    return Mutant("wires_tcp.c", old, new)


MUTANTS = {
    "no proof is asked for": bug('if (!code_is(t, h, "connects", h->bytes) || !(*w', "if (!(*w"),
    "who accepts need not know the secret": bug('if (!code_is(t, h, "accepts", answer.code))', "if (0)"),
    "ready may be said by anybody": bug('return code_is(t, h, "ready", h->bytes) ? DONE : FAILS;', "return DONE;"),
    "both sides prove the same": bug("memcpy(h->said.who, who, strlen(who));", "(void)who;"),
    "random numbers are not": Mutant(
        "hmac.c",
        "return getrandom(bytes, length, GRND_NONBLOCK) == (ssize_t)length;",
        "return !!memset(bytes, 0, length);",
    ),
    "an older connection may come": bug("|| o->life <= w->life)", ")"),
    "wires are joined crosswise": bug("w->ends.far_nic != o->nic ||", ""),
    "it does not matter by which NIC": bug("w->ends.nic != h->nic ||", ""),
    "a lane need not be there": bug("|| o->lane >= t->lanes[o->from])", ")"),
    "segments need not be the same": bug("o->segment_bytes != t->config.segment_bytes)", "0)"),
    "a stranger has all the time": bug(
        "if (t->stranger[i].stage != NOBODY && now_ns - t->stranger[i].since_ns >= t->config.handshake_ns)", "if (0)"
    ),
    "strangers keep the job out": bug("const int of_job = is_of_job(t, &from);", "const int of_job = 0;"),
    "a frame may be as long as it likes": bug("head.length > t->config.segment_bytes) {", "0) {"),
    "what is no frame is taken for one": bug("if (head.magic != OPTCC_MAGIC ||", "if ("),
    "what is left of a connection goes on in the next": bug("    w->at = w->filled = 0;\n", ""),
    "a frame that was begun is begun again": bug("    w->begun = 0;\n    w->sent = 0;\n", ""),
    "a partial payload is sent from its beginning": bug(
        "add_payload(w, parts, &count, w->sent);", "add_payload(w, parts, &count, 0);"
    ),
    "payloads are not padded": bug(
        "add(parts, count, zeros, aligned", "(void)zeros; if (0) add(parts, count, zeros, aligned"
    ),
    "a lost connection is not told": bug("    w->died = 1;\n    has_news(t, w);\n", ""),
    "a fence is never done": bug("    w->fenced = 1;\n", ""),
    "who wants to sleep does not hear what has left": bug("t->news.count || t->ready.count ?", "t->ready.count ?"),
    "what is said while a wire opens is lost": bug(
        "    flush(t, w); /* what was said", "    w->queued = 0; /* what was said"
    ),
    "a wire is not renewed": bug(
        "        attempt(t, w);\n    return OPTCC_LOST;", "        (void)0;\n    return OPTCC_LOST;"
    ),
}


def find(library: Path, limit_s: float) -> None:
    lib = load(library)
    faulthandler.disable()
    found = in_parts(lib) or armed(lib) or asleep(lib) or attack(lib) or deceive(lib) or talk(lib, 1)
    found = found or attack(lib, ["another secret"], crowd=100)
    found = found or break_wires(lib, 20, seed=1, limit_s=limit_s / 4, place=large()).fault
    sys.exit(bool(found or check(lib, 60, seed=1)))


QUICK = ("no proof is asked for", "a payload that has left wakes nobody")
"""The others are tried in the long tests."""


def is_found(library: Path, limit_s: float = 40.0) -> bool:
    child = get_context("spawn").Process(
        target=find, args=(library, limit_s)
    )  # it may crash or hang, which finds it, too
    child.start()
    child.join(limit_s)
    hangs = child.is_alive()
    child.kill()
    return hangs or bool(child.exitcode)


@pytest.mark.long
def test_where_there_is_no_mutant_none_is_found(tmp_path: Path) -> None:
    assert not is_found(build(tmp_path), limit_s=240.0)  # on a busy machine, too


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in MUTANTS]
)
def test_a_mutant_is_found(name: str, tmp_path: Path) -> None:
    assert is_found(build(tmp_path, MUTANTS[name].planted(tmp_path), LOOSE))
