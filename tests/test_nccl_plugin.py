"""The plugin for NCCL, called as NCCL calls it: all versions of its tables, NICs that are cut, peers that are none."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import struct
import subprocess
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from optcc.cli import main
from tests.effort import cases
from tests.native_build import Mutant
from tests.nccl_ranks import REMOTE_ERROR, Build, Cables, Ranks, killed, loopback, namespaces, run, shared_build

pytestmark = pytest.mark.cc
VERSIONS = (8, 9, 10, 11, 12)
OFFER_BYTES = 4760
"""`struct offer` of link.c."""


@pytest.fixture(scope="module")
def built() -> Build:
    return shared_build()


# --- whole runs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_every_table_moves_the_right_bytes(built: Build, version: int) -> None:
    """8 in flight, tested in order, empty and odd ones, in longer buffers; communicators beside each other; a process
    that forks, abandons what is in flight, and unloads the library and loads it again."""
    outcome = run(built, loopback(2), version=version, seed=version)
    assert not outcome.fault
    told = "\n".join(outcome.logged)
    assert "is lost" not in told.partition("abandons")[0]
    if version >= 11:  # older NCCL never says that it is over
        # All connections share the links: to itself and to the peer, each time that the library is used.
        assert [log.count("link to process") for log in outcome.logged] == [4, 4]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_connections_that_break_lose_nothing(built: Build, ranks: int) -> None:
    cuts, seed = 0, ranks
    while cuts < 6:  # a fast machine is through before many are made
        outcome = run(built, loopback(ranks), seed=seed, cuts=20)
        assert not outcome.fault, f"seed {seed}"
        cuts += outcome.cuts
        seed += 1


@pytest.mark.long
def test_many_connections_break(built: Build) -> None:
    cuts = seed = 0
    while cuts < cases(500):
        outcome = run(built, loopback(2 + seed % 3), seed=seed, messages=60, cuts=25, version=VERSIONS[seed % 5])
        assert not outcome.fault, f"seed {seed}"
        cuts += outcome.cuts
        seed += 1


@pytest.mark.parametrize(
    ("nics", "env"),
    [
        (["127.0.1.2", "127.0.2.2,127.0.2.3,127.0.2.4"], {}),
        (["127.0.1.2,127.0.1.3,127.0.1.4", "127.0.2.2,127.0.2.3"], {"OPTCC_LANES": "all"}),
        (["::1", "::1"], {"OPTCC_SEGMENT_BYTES": "8192", "OPTCC_WINDOW_BYTES": "16384"}),
        (["lo", "lo"], {"OPTCC_DEVICES": "3", "OPTCC_SPIN_US": "0"}),
    ],
)
def test_other_numbers_of_nics_and_settings(built: Build, nics: list[str], env: dict[str, str]) -> None:
    if "::1" in nics and not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6 here")
    assert not run(built, nics, env=env).fault


def test_nics_of_nccls_own_variable(built: Build) -> None:
    env = {"NCCL_SOCKET_IFNAME": "=lo", "NCCL_SOCKET_FAMILY": "AF_INET"}
    assert not run(built, ["", ""], env=env, messages=5).fault


def test_a_process_that_is_killed_is_an_error_at_the_others(built: Build) -> None:
    """No hang: NCCL hears of it after OPTCC_RETURN_S."""
    outcome = killed(built, "sends and receives", messages=10**6)
    assert "does not answer by any NIC" in outcome.logged[0]


# --- network namespaces --------------------------------------------------------------------------------------------


def cabled(built: Build, ranks: int, seed: int, messages: int) -> int:
    """A run whose cables are pulled; returns how many were."""
    with namespaces(ranks) as names:
        prefix = [["ip", "netns", "exec", name] for name in names[:-1]]
        nics = ["r0,r1"] * ranks
        with Ranks(built, nics, seed=seed, messages=messages, prefix=prefix, version=VERSIONS[seed % 5]) as played:
            cables = Cables(names[-1], ranks, 2, seed)
            try:
                outcome = played.outcome()
            finally:
                cables.stop()
        assert not outcome.fault, f"seed {seed}"
        return cables.pulled


@pytest.mark.namespaces
@pytest.mark.parametrize("ranks", [2, 3])
def test_cables_that_are_pulled_lose_nothing(built: Build, ranks: int) -> None:
    pulled, seed = 0, ranks
    while pulled < 3:
        pulled += cabled(built, ranks, seed, 1500)
        seed += 1


@pytest.mark.long
@pytest.mark.namespaces
def test_many_cables(built: Build) -> None:
    pulled = seed = 0
    while pulled < cases(200):
        pulled += cabled(built, 2 + seed % 3, seed, 2000)
        seed += 1


# --- settings, and peers that are none -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"OPTCC_NICS": "nope0"}, "no interface nope0 with an address here"),
        ({"OPTCC_NICS": "", "NCCL_SOCKET_IFNAME": "=nope0"}, "NCCL_SOCKET_IFNAME==nope0: no running interface fits"),
        ({"OPTCC_NICS": "192.0.2.1"}, "cannot listen on its address"),
        ({"OPTCC_SEGMENT_BYTES": "many"}, "OPTCC_SEGMENT_BYTES=many: expected a whole number from 4096"),
        ({"OPTCC_SEGMENT_BYTES": "5000"}, "expected a multiple of 4096"),
        ({"OPTCC_SUSPECT_MS": "-1"}, "OPTCC_SUSPECT_MS=-1: expected a whole number"),
        ({"OPTCC_LANES": "some"}, "expected rails"),
        ({"OPTCC_COLLNET": "sometimes"}, "OPTCC_COLLNET=sometimes: expected auto"),
        ({"OPTCC_COLLNET_BYTES": "-1"}, "OPTCC_COLLNET_BYTES=-1: expected a whole number"),
    ],
)
def test_settings_that_cannot_be(built: Build, env: dict[str, str], told: str) -> None:
    """`init` fails and says why; NCCL says so, or goes on with another network where NCCL_NET does not forbid it."""
    outcome = run(built, ["127.0.0.1"], env=env)
    assert outcome.told == ["wrong: init"]
    assert told in outcome.logged[0]


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({}, "segments of 128 KiB, windows of 512 KiB"),
        ({"OPTCC_SEGMENT_BYTES": "65536"}, "segments of 64 KiB, windows of 512 KiB"),
        ({"OPTCC_WINDOW_BYTES": "98304"}, "segments of 128 KiB, windows of 96 KiB"),
    ],
)
def test_windows_are_as_told(built: Build, env: dict[str, str], told: str) -> None:
    outcome = run(built, ["127.0.0.1"], messages=3, env=env)
    assert not outcome.fault
    assert told in outcome.logged[0]


class Table:
    """Some calls of version 8, from Python: for peers that do not behave."""

    def __init__(self, plugin: Path) -> None:
        library = ctypes.CDLL(str(plugin))
        words = (ctypes.c_void_p * 19).in_dll(library, "ncclNetPlugin_v8")

        def call(at: int, *types: Any) -> Any:
            return ctypes.CFUNCTYPE(ctypes.c_int, *types)(words[at] or 0)

        pointer = ctypes.c_void_p
        self.lines: list[str] = []
        logger = ctypes.CFUNCTYPE(
            None, ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p
        )
        self._log = logger(lambda _level, _of, _file, _line, form, first: self.lines.append(self._said(form, first)))
        self.init = call(1, pointer)
        self.listen = call(4, ctypes.c_int, ctypes.c_char_p, pointer)
        self.connect = call(5, ctypes.c_int, ctypes.c_char_p, pointer, pointer)
        self.accept = call(6, pointer, pointer, pointer)
        self.send = call(10, pointer, pointer, ctypes.c_int, ctypes.c_int, pointer, pointer)
        self.receive = call(11, pointer, ctypes.c_int, pointer, pointer, pointer, pointer, pointer)
        self.test = call(13, pointer, pointer, pointer)

    @staticmethod
    def _said(form: bytes, first: int) -> str:
        """What is logged, with the first of what follows the format where that is a string."""
        if form.partition(b"%")[2][:1] != b"s":
            return form.decode()
        return form.replace(b"%s", ctypes.string_at(first), 1).decode()

    def start(self) -> None:
        assert self.init(ctypes.cast(self._log, ctypes.c_void_p)) == 0

    def handle(self) -> tuple[bytes, ctypes.c_void_p]:
        """A listener, and what a peer is told of it."""
        bytes_, listener = ctypes.create_string_buffer(128), ctypes.c_void_p()
        assert self.listen(0, bytes_, ctypes.byref(listener)) == 0
        return bytes_.raw, listener

    @staticmethod
    def made(call: Any, *arguments: Any) -> ctypes.c_void_p:
        """What a call makes in its last argument, asked again and again."""
        made = ctypes.c_void_p()
        while not made.value:
            assert call(*arguments, ctypes.byref(made)) == 0
        return made

    def done(self, request: ctypes.c_void_p) -> bool:
        done = ctypes.c_int()
        assert self.test(request, ctypes.byref(done), None) == 0
        return done.value != 0

    def try_connect(self, handle: bytes, limit_s: float) -> tuple[int, bool]:
        """(result, whether there is a connection), asked again and again."""
        begun, made = time.monotonic(), ctypes.c_void_p()
        result = 0
        while result == 0 and not made.value and time.monotonic() - begun < limit_s:
            result = self.connect(0, handle, ctypes.byref(made), None)
            time.sleep(0.001)
        return result, made.value is not None


def door(handle: bytes) -> tuple[str, int]:
    """The first address of a handle."""
    family, _, port = struct.unpack_from("<BBH", handle, 40)
    assert family == 4
    return socket.inet_ntop(socket.AF_INET, handle[44:48]), port


def alone(test: Any, built: Build, **env: str) -> None:
    """Run in a process of its own: the library stays where it is loaded."""

    def child() -> None:
        os.environ.update({"OPTCC_NICS": "127.0.0.1", "OPTCC_CONNECT_S": "1", **env})
        test(Table(built.plugin))
        os._exit(0)

    process = get_context("fork").Process(target=child)
    process.start()
    process.join(120)
    assert process.exitcode == 0


def test_handles_that_are_none_are_refused(built: Build) -> None:
    def play(table: Table) -> None:
        table.start()
        handle, _ = table.handle()
        for at, told in ((0, "not optcc's"), (4, "install the same optcc everywhere"), (5, "broken")):
            bent = bytearray(handle)
            bent[at] ^= 0x7F
            assert table.try_connect(bytes(bent), 5) == (5, False)
            assert told in table.lines[-1]
        wrong = bytearray(handle)
        wrong[24] ^= 1  # the secret
        wrong[8] ^= 1  # another process, or the link to ourselves would do
        assert table.try_connect(bytes(wrong), 20) == (REMOTE_ERROR, False)
        assert table.try_connect(handle, 20) == (0, True)

    alone(play, built)


def test_a_start_that_fails_leaves_signals_as_they_were(built: Build) -> None:
    def play(table: Table) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        assert table.init(ctypes.cast(table._log, ctypes.c_void_p)) != 0
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before

    alone(play, built, OPTCC_NICS="none7")


def test_strangers_at_the_door_are_sent_away(built: Build) -> None:
    """Silent ones, and such as say anything: honest ones still come in, and the strangers are cut in a bounded time."""

    def play(table: Table) -> None:
        table.start()
        handle, _ = table.handle()
        strangers = [socket.create_connection(door(handle)) for _ in range(200)]
        for i, stranger in enumerate(strangers):
            if i % 2:
                stranger.sendall(os.urandom(i * 5))
        assert table.try_connect(handle, 30) == (0, True)
        for stranger in strangers:
            stranger.settimeout(30)
            try:
                while stranger.recv(4096):
                    pass
            except ConnectionResetError:
                pass

    alone(play, built, OPTCC_CONNECT_S="30")


def answers_without_secret(plugin: Path) -> bool:
    """Whether a door answers who says all that is right, but does not know the secret."""
    table = Table(plugin)
    table.start()
    handle, _ = table.handle()
    with socket.create_connection(door(handle)) as stranger:
        stranger.settimeout(30)
        assert len(stranger.recv(24, socket.MSG_WAITALL)) == 24
        head = struct.pack("<IBBBBQII", 0x0CC70A22, 2, 1, 0, 0, 7, 128 << 10, 384)
        stranger.sendall(head.ljust(OFFER_BYTES, b"\1"))
        try:
            return len(stranger.recv(OFFER_BYTES, socket.MSG_WAITALL)) > 0
        except ConnectionResetError:
            return False


def found(plugin: Path) -> None:
    os.environ["OPTCC_NICS"] = "127.0.0.1"
    os._exit(10 + answers_without_secret(plugin))


def test_who_has_no_handle_gets_no_answer(built: Build) -> None:
    process = get_context("fork").Process(target=found, args=(built.plugin,))
    process.start()
    process.join(120)
    assert process.exitcode == 10


@pytest.mark.long
@pytest.mark.parametrize("mutant", ["any secret opens the door"], indirect=True)
def test_a_door_that_is_open_to_all_is_found(mutant: Build) -> None:
    process = get_context("fork").Process(target=found, args=(mutant.plugin,))
    process.start()
    process.join(120)
    assert process.exitcode == 11


# --- who moves a request -------------------------------------------------------------------------------------------

ASKS = 20000
"""After so many tests of a request our thread gives way, or does so when it comes to run."""
GIVES_WAY_FOR_GOOD = Mutant("nccl/net.c", "WAY_NS = 1000000;", "WAY_NS = 3600 * UINT64_C(1000000000);")
NOBODY_HELPS = Mutant("nccl/net.c", "if (atomic_load(&plugin.is) != GIVES_WAY ||", "if (1 ||")


def arrives(plugin: Path, *, asks_on: bool, limit_s: float) -> bool:
    """Whether a message is acknowledged within `limit_s` by a receiver who has asked after it for a while, and asks on,
    or no more until then."""
    context = get_context("fork")
    here, there = context.Pipe()

    def started() -> Table:
        os.environ["OPTCC_NICS"] = "127.0.0.1"
        table = Table(plugin)
        table.start()
        return table

    def receiver() -> None:
        table = started()
        handle, listener = table.handle()
        there.send(handle)
        connection = table.made(lambda made: table.accept(listener, made, None))
        buffer = ctypes.create_string_buffer(8)
        data, size, tag = ctypes.c_void_p(ctypes.addressof(buffer)), ctypes.c_int(8), ctypes.c_int()
        told = [ctypes.byref(one) for one in (data, size, tag, ctypes.c_void_p())]
        request = table.made(table.receive, connection, 1, *told)
        done = any(table.done(request) for _ in range(ASKS))
        there.send("has asked")
        while asks_on and not done:
            done = table.done(request)
        if asks_on:  # and goes on to ask, after the next one, so that the acknowledgement goes
            another = table.made(table.receive, connection, 1, *told)
            while not there.poll():
                table.done(another)
        there.recv()
        while not done:
            done = table.done(request)
        os._exit(buffer.raw != b"a letter")

    def sender() -> None:
        table, handle = started(), here.recv()
        connection = table.made(lambda made: table.connect(0, handle, made, None))
        here.recv()
        request = table.made(table.send, connection, b"a letter", 8, 0, None)
        until = time.monotonic() + limit_s
        while not (done := table.done(request)) and time.monotonic() < until:
            pass
        here.send("sent")
        os._exit(not done)

    processes = [context.Process(target=one) for one in (receiver, sender)]
    for process in processes:
        process.start()
    processes[1].join(120)
    acknowledged = processes[1].exitcode == 0
    processes[0].join(60 if acknowledged else 0)
    right = processes[0].exitcode == 0
    processes[0].kill()
    assert right or not acknowledged
    return acknowledged


@pytest.mark.parametrize("asks_on", [False, True])
def test_who_asks_no_more_is_served_all_the_same(built: Build, asks_on: bool) -> None:
    assert arrives(built.plugin, asks_on=asks_on, limit_s=60)


@pytest.mark.long
def test_who_asks_moves_the_request(tmp_path: Path) -> None:
    """Our thread gives way for good: so NCCL's threads do all; and who asks no more waits for ever."""
    plugin = Build.wrong(tmp_path, GIVES_WAY_FOR_GOOD).plugin
    assert arrives(plugin, asks_on=True, limit_s=60)
    assert not arrives(plugin, asks_on=False, limit_s=5)


@pytest.mark.long
def test_a_request_that_nobody_moves_is_found(tmp_path: Path) -> None:
    assert not arrives(Build.wrong(tmp_path, GIVES_WAY_FOR_GOOD, NOBODY_HELPS).plugin, asks_on=True, limit_s=5)


# --- the library ---------------------------------------------------------------------------------------------------


def test_the_library_shows_tables_and_stays_loaded(built: Build) -> None:
    """NCCL unloads it with its last communicator. Engines of optcc in the same process are others."""
    told = subprocess.run(["readelf", "-dW", "--dyn-syms", built.plugin], capture_output=True, text=True, check=True)
    assert "NODELETE" in told.stdout
    shown = re.findall(r"GLOBAL DEFAULT +\d+ (\S+)", told.stdout)
    tables = [f"nccl{kind}Plugin_v{version}" for kind in ("Net", "CollNet") for version in VERSIONS]
    assert sorted(shown) == sorted([*tables, "ncclTunerPlugin_v4", "ncclTunerPlugin_v5", "ncclProfiler_v5"])


def test_the_command_tells_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from optcc.cli import nccl

    (tmp_path / nccl.PLUGIN).touch()
    monkeypatch.setattr(nccl, "files", lambda package: tmp_path)
    path = str(tmp_path / nccl.PLUGIN)
    told = CliRunner().invoke(main, ["nccl", "--path"])
    assert told.stdout == f"{path}\n"
    assert CliRunner().invoke(main, ["nccl", "--env"]).stdout.splitlines() == [
        f"export NCCL_NET_PLUGIN={path}",
        "export NCCL_NET=optcc",
    ]
    assert CliRunner().invoke(main, ["nccl", "--env", "--path"]).exit_code == 2
    (tmp_path / nccl.PLUGIN).unlink()
    missing = CliRunner().invoke(main, ["nccl", "--path"])
    assert missing.exit_code == 2
    assert "make native" in missing.stderr
    monkeypatch.setattr(nccl, "files", lambda package: tmp_path / "a,b")
    (tmp_path / "a,b").mkdir()
    (tmp_path / "a,b" / nccl.PLUGIN).touch()
    assert "comma" in CliRunner().invoke(main, ["nccl", "--path"]).stderr


# --- bugs that must be found ---------------------------------------------------------------------------------------

MUTANTS = {
    "a receive is told with its buffer's length": Mutant(
        "nccl/net.c", "                   bytes);", "                   r->bytes);"
    ),
    "a message is done when it is taken": Mutant(
        "nccl/net.c", "            if (result == OPTCC_AGAIN)\n                continue;", ""
    ),
    "any listener takes any connection": Mutant(
        "messages.c", "s->is != WANTED || s->port != port ||", "s->is != WANTED ||"
    ),
    "what a lost wire carried is forgotten": Mutant(
        "flow.c", "o->is == FLYING && o->wire == w->index)", "o->is == FLYING && o->wire == w->index && 0)"
    ),
    "any secret opens the door": Mutant(
        "nccl/link.c", 'if (!optcc_same_secret(code, m->offer.code, OPTCC_HMAC))', "if (0)"
    ),
}  # fmt: skip


@pytest.fixture
def mutant(request: pytest.FixtureRequest, tmp_path: Path) -> Build:
    return Build.wrong(tmp_path, MUTANTS[request.param])


@pytest.mark.long
@pytest.mark.parametrize("mutant", [name for name in MUTANTS if "secret" not in name], indirect=True)
def test_a_mutant_is_found(mutant: Build) -> None:
    env = {"OPTCC_RETURN_S": "5", "HARNESS_LIMIT_S": "60"}  # a hang is found, too
    with Ranks(mutant, loopback(2), messages=1000, cuts=100, env=env) as ranks:
        codes = [process.wait(280) for process in ranks.processes[:1]]
        assert any(codes)


# --- sanitizers ----------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("kind", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(kind: str) -> None:
    built = shared_build(kind)
    for seed in range(3):
        outcome = run(built, loopback(2 + seed), seed=seed, messages=30, cuts=15, env={"OPTCC_RETURN_S": "100"})
        assert not outcome.unsound
