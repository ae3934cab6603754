"""The plugin for NCCL over RDMA, on a played fabric: any numbers of NICs, NICs that are struck, CollNet, settings."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from shutil import rmtree

import pytest

from optcc.export.calls import prepared
from optcc.fabric.played import PlayedFabric
from optcc.values.cluster import Cluster
from tests.effort import cases
from tests.native_build import Mutant
from tests.nccl_ranks import ROOT, Build, Outcome, Ranks, loopback, run, shared_build
from tests.test_nccl_collnet import plans_taken

pytestmark = pytest.mark.cc
SMALL = {"OPTCC_SEGMENT_BYTES": "16384", "OPTCC_WINDOW_BYTES": "65536"}
"""For many NICs: each wire has registered memory for a window, twice."""


@pytest.fixture(scope="module")
def built() -> Build:
    return shared_build()


@contextmanager
def fabric_of(hosts: int, nics: int, *, roce: bool = False) -> Iterator[PlayedFabric]:
    place = Path(tempfile.mkdtemp(prefix="optcc-test-", dir="/dev/shm"))
    try:
        yield PlayedFabric.make(place / "fabric", hosts=hosts, nics=nics, roce=roce)
    finally:
        rmtree(place, ignore_errors=True)


def hosts_of(fabric: PlayedFabric, nics: Sequence[int], **more: str) -> list[list[str]]:
    """What begins each rank's command: rank i is on host i, with so many of its NICs."""
    found = []
    for host, count in enumerate(nics):
        names = ",".join(fabric.names[:count])
        env = {**fabric.env(host), "NCCL_IB_HCA": f"={names}", **more}
        found.append(["env", *(f"{name}={value}" for name, value in env.items())])
    return found


class Strikes:
    """Strikes NICs of one rail on some hosts, told or silently, and heals them, again and again, until `stop`."""

    def __init__(self, fabric: PlayedFabric, seed: int) -> None:
        self.made = 0
        self._fabric, self._draw, self._stop = fabric, random.Random(seed), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        draw = self._draw
        while not self._stop.wait(draw.choice((0.02, 0.2, 0.5))):
            rail = draw.choice(self._fabric.names)
            struck = [f"host{host}/{rail}" for host in range(self._fabric.hosts) if draw.random() < 0.6]
            for name in struck:
                if draw.random() < 0.5:
                    self._fabric.down(name)
                else:
                    self._fabric.lose(
                        name, way=draw.choice(("out", "in", "both")), what=draw.choice(("all", "data", "acks"))
                    )
                self.made += 1
            self._stop.wait(draw.choice((0.01, 0.3, 0.8)))
            for name in struck:
                self._fabric.up(name)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def struck(built: Build, seed: int, *, calls: int = 0, messages: int = 1500, hosts: int = 2) -> int:
    """A run whose NICs are struck; returns how often."""
    with fabric_of(hosts, 2, roce=seed % 2 == 1) as fabric:
        env = {"OPTCC_WIRES": "rdma", "OPTCC_RETURN_S": "100"}
        prefix = hosts_of(fabric, [2] * hosts)
        with Ranks(
            built, loopback(hosts, 1), seed=seed, calls=calls, messages=messages, prefix=prefix, env=env
        ) as ranks:
            strikes = Strikes(fabric, seed)
            try:
                outcome = ranks.outcome()
            finally:
                strikes.stop()
    assert not outcome.fault, f"seed {seed}"
    return strikes.made


# --- whole runs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nics", "calls"),
    [([2, 1], 0), ([1, 1], 30), ([8, 2, 1], 30), pytest.param([2, 8, 1, 8], 0, marks=pytest.mark.long),
     pytest.param([8, 8, 2, 1], 40, marks=pytest.mark.long)],
)  # fmt: skip
def test_bytes_are_right_with_any_numbers_of_nics(built: Build, nics: list[int], calls: int) -> None:
    """Padded, odd, empty messages, and windows of CollNet; over InfiniBand and Ethernet. A fork is provided for."""
    roce = len(nics) != 3
    with fabric_of(len(nics), max(nics), roce=roce) as fabric:
        outcome = run(built, loopback(len(nics), 1), prefix=hosts_of(fabric, nics), calls=calls, seed=sum(nics),
                      env={"OPTCC_WIRES": "rdma", **SMALL})  # fmt: skip
        assert not outcome.fault
        assert sum(fabric.nic(name).counters["bytes_out"] for name in fabric.every()) > 10**6
    for log, count in zip(outcome.logged, nics, strict=True):
        assert f"by RDMA over {'Ethernet' if roce else 'InfiniBand'}" in log
        assert f"[{count - 1}]mlx5_{count - 1} " in log
        assert f"[{count}]mlx5" not in log
        assert calls or "] fork: 1\n" in log
        opened = re.search(r"\] threads: (\d+)", log)  # ours, the harness's two, and one where a NIC is opened
        assert calls or int(opened[1]) <= 3 + count, "each NIC is opened once"


@pytest.mark.parametrize(("hosts", "calls"), [(2, 0), (3, 400)])
def test_nics_that_are_struck_lose_nothing(built: Build, hosts: int, calls: int) -> None:
    """Links that go down, frames that are swallowed, one way or both, acknowledgements alone; all of it heals."""
    made, seed = 0, hosts
    while made < 4:
        made += struck(built, seed, hosts=hosts, calls=calls)
        seed += 2


@pytest.mark.long
def test_many_strikes(built: Build) -> None:
    made = seed = 0
    while made < cases(200):
        made += struck(built, seed, hosts=2 + seed % 3, calls=600 * (seed % 2))
        seed += 1


@pytest.mark.parametrize("silent", [False, True])
def test_a_nic_that_is_lost_changes_the_plan(built: Build, tmp_path: Path, silent: bool) -> None:
    """And the calls after it go by the plan for what is left; all nodes take it at the same call. Where the NIC falls
    silent, its links to nodes to which nothing is sent would not notice by themselves."""
    assert replans(built, tmp_path, silent) == ""


def replans(built: Build, folder: Path, silent: bool = False) -> str:
    """What is wrong with three nodes, one of which loses a NIC; empty: nothing."""
    files, _ = prepared(Cluster.uniform(servers=3, nics=2, rate=Fraction(10**9)), 1)
    for name, text in files.items():
        (folder / name).write_text(text)
    with fabric_of(3, 2) as fabric:
        env = {"OPTCC_WIRES": "rdma", "OPTCC_PLANS": str(folder), "OPTCC_RATES": "8,8", "HARNESS_LIMIT_S": "100"}
        prefix = hosts_of(fabric, [2, 2, 2])
        calls = 1000 if silent else 500
        if silent:  # AllReduces alone, by a ring: node 2 sends to node 0
            env["HARNESS_BYTES"] = "65536"
            for name in fabric.every():
                fabric.set(name, rate=16_000_000)
        with Ranks(built, loopback(3, 1), calls=calls, connections=1, prefix=prefix, env=env) as ranks:
            log = ranks.folder / "log.0"
            while "on by" not in log.read_text(encoding="utf-8"):
                time.sleep(0.01)
            if silent:
                fabric.lose("host2/mlx5_1")
            else:
                fabric.down("host2/mlx5_1")
            outcome = ranks.outcome()
    taken = plans_taken(outcome)
    first = {tuple(re.findall(r"from call (\d+) on by 0001.plan", one)[:1]) for one in outcome.logged}
    if (taken[0], taken[-1], len(first)) != ("now.plan", "0001.plan", 1):
        return f"{taken} {first} {outcome.fault}"
    return outcome.fault


def test_a_process_that_ends_is_known_at_once(built: Build) -> None:
    """Queue pairs do not tell; the connection of the meeting does, long before OPTCC_RETURN_S."""
    assert ends(built) == ""


def test_a_process_that_ends_is_known_though_one_forked_from_it_lives(built: Build) -> None:
    """Which has the connection of the meeting, too."""
    assert ends(built, HARNESS_LEAVES="1") == ""


def ends(built: Build, **more: str) -> str:
    """What is wrong when a rank is killed, or leaves by itself; empty: the others hear of it."""
    with fabric_of(2, 2) as fabric:
        env = {"OPTCC_WIRES": "rdma", "OPTCC_RETURN_S": "3600", "HARNESS_LIMIT_S": "40", **more}
        with Ranks(built, loopback(2, 1), messages=10**6, prefix=hosts_of(fabric, [2, 2]), env=env) as ranks:
            while "sends and receives" not in (ranks.folder / "log.0").read_text(encoding="utf-8"):
                time.sleep(0.01)
            if "HARNESS_LEAVES" not in more:
                ranks.processes[1].kill()
            outcome = ranks.outcome()
    return (
        "" if outcome.codes[0] == 1 and re.search("WARN .*its process has ended", outcome.logged[0]) else outcome.fault
    )


def test_a_plugin_opens_when_its_only_nic_is_back(built: Build) -> None:
    """Before that it says why it does not, and what it had begun is undone."""
    with fabric_of(2, 1) as fabric:
        fabric.down("host1/mlx5_0")
        env = {"OPTCC_WIRES": "rdma", "HARNESS_OPEN_S": "60"}
        with Ranks(built, loopback(2, 1), messages=3, prefix=hosts_of(fabric, [1, 1]), env=env) as ranks:
            while "no RDMA device has a port with a link" not in (ranks.folder / "log.1").read_text(encoding="utf-8"):
                time.sleep(0.01)
            fabric.up("host1/mlx5_0")
            assert not ranks.outcome().fault


# --- which wires ---------------------------------------------------------------------------------------------------


def one(built: Build, **env: str) -> Outcome:
    """A run of one rank on a host with two NICs."""
    with fabric_of(1, 2) as fabric:
        nics = env.pop("OPTCC_NICS", "")
        return run(built, [nics], messages=3, env={**fabric.env(0), "NCCL_SOCKET_IFNAME": "=lo", **env})


@pytest.mark.parametrize(
    ("env", "told"),
    [
        (
            {},
            "[0]mlx5_0 200000 Mb/s [1]mlx5_1 200000 Mb/s, by RDMA over InfiniBand, segments of 128 KiB, windows of 512",
        ),
        ({"NCCL_IB_HCA": "^mlx5_0"}, "using [0]mlx5_1 200000 Mb/s, by RDMA"),
        ({"NCCL_IB_HCA": "=mlx5_1:1"}, "using [0]mlx5_1 200000 Mb/s, by RDMA"),
        ({"NCCL_IB_HCA": "mlx5_1:2"}, "no RDMA: no RDMA device has a port with a link"),
        ({"NCCL_IB_DISABLE": "1"}, "by TCP"),
        ({"OPTCC_WIRES": "tcp"}, "using [0]lo"),
        ({"OPTCC_NICS": "127.0.0.1"}, "using [0]127.0.0.1"),
        ({"OPTCC_WIRES": "rdma", "OPTCC_NICS": "127.0.0.1"}, "by RDMA over InfiniBand"),
    ],
)
def test_which_wires_are_taken(built: Build, env: dict[str, str], told: str) -> None:
    outcome = one(built, **env)
    assert not outcome.fault
    assert told in outcome.logged[0]


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"OPTCC_WIRES": "rdma", "NCCL_IB_HCA": "nope"}, "among NCCL_IB_HCA=nope"),
        ({"OPTCC_WIRES": "rdma", "NCCL_IB_DISABLE": "1"}, "NCCL_IB_DISABLE is set"),
        ({"OPTCC_WIRES": "roce"}, "expected rdma, tcp, or auto"),
    ],
)
def test_wires_that_cannot_be_stop_the_job(built: Build, env: dict[str, str], told: str) -> None:
    outcome = one(built, **env)
    assert outcome.told == ["wrong: init"]
    assert told in outcome.logged[0]


TUNES = """
import sys
from pathlib import Path
from tests.test_nccl_collnet import ALLREDUCE, CHAIN, PROTOCOLS, SIMPLE, tuned
from tests.test_nccl_plugin import Table
plugin = Path(sys.argv[1])
Table(plugin).start()
print(tuned(plugin, 5, ALLREDUCE, 64 << 20)[CHAIN * PROTOCOLS + SIMPLE])
"""


@pytest.mark.parametrize(
    ("wires", "left", "takes"),
    [("rdma", Fraction(3, 4), False), ("rdma", Fraction(1, 2), True), ("tcp", Fraction(3, 4), False),
     ("tcp", Fraction(1, 2), True)],
)  # fmt: skip
def test_plans_are_taken_where_a_node_has_lost_a_quarter(
    built: Build, tmp_path: Path, wires: str, left: Fraction, takes: bool
) -> None:
    """Of its rate, by one of its two NICs; over either kind of wires. Else NCCL's ring is as fast."""
    slow = Cluster.uniform(servers=4, nics=2, rate=10**9).degrade("server1/nic0", left)
    (tmp_path / "now.plan").write_text(prepared(slow, 0)[0]["now.plan"], encoding="utf-8")
    with fabric_of(1, 2) as fabric:
        env = {
            **os.environ, **fabric.env(0), "OPTCC_WIRES": wires, "NCCL_SOCKET_IFNAME": "=lo",
            "OPTCC_PLANS": str(tmp_path),
        }  # fmt: skip
        command = [sys.executable, "-c", TUNES, str(built.plugin)]
        done = subprocess.run(command, env=env, cwd=ROOT, text=True, capture_output=True, timeout=120, check=True)
    assert float(done.stdout) == (0.0 if takes else -1.0)


def test_ranks_with_other_wires_are_told(built: Build) -> None:
    with fabric_of(2, 1) as fabric:
        prefix = hosts_of(fabric, [1, 1])
        prefix[1].append("OPTCC_WIRES=tcp")
        outcome = run(built, loopback(2, 1), prefix=prefix, env={"OPTCC_WIRES": "rdma"})
    assert outcome.codes == [1, 1]
    assert "goes by another kind of wires" in outcome.logged[0] + outcome.logged[1]


# --- bugs that must be found, sanitizers ---------------------------------------------------------------------------

MUTANTS = {
    "a payload is not copied": Mutant(
        "wires_verbs.c", "memcpy(copy + sizeof *head, payload, head->length);", "(void)payload;"
    ),
    "all payloads have one place": Mutant(
        "wires_verbs.c", "w->place = w->place + 1 == v->receives ? 0 : w->place + 1;", "w->place = 0;"
    ),
    "a node does not take the plan that is granted": Mutant(
        "nccl/groups.c", "add_grant(g, note->row, note->offset", "add_grant(g, 0, note->offset"
    ),
    "the end of a process is not seen": Mutant(
        "nccl/link.c", "            l->left_ns = clock_ns();", "            l->left_ns = 0;"
    ),
    "the connection of the meeting is a forked child's": Mutant(
        "nccl/link.c", "        shutdown(l->lifeline, SHUT_RDWR);\n", ""
    ),
    "each link opens the devices anew": Mutant(
        "wires_verbs.c", "n->shared = name->shared ? name->shared : &n->own;", "n->shared = &n->own;"
    ),
    "a fork is not provided for": Mutant("wires_verbs.c", "        (void)fork_init();", "        (void)0;"),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("mutant", sorted(MUTANTS))
def test_a_mutant_is_found(mutant: str, tmp_path: Path) -> None:
    built = Build.wrong(tmp_path, MUTANTS[mutant])
    if "end of a process" in mutant:
        assert ends(built, HARNESS_LIMIT_S="10")
        return
    if "forked child" in mutant:
        assert ends(built, HARNESS_LIMIT_S="10", HARNESS_LEAVES="1")
        return
    if "a fork" in mutant:
        with pytest.raises(AssertionError, match="fork: 1"):
            test_bytes_are_right_with_any_numbers_of_nics(built, [1, 1], 0)
        return
    if "opens the devices" in mutant:
        with pytest.raises(AssertionError, match="each NIC is opened once"):
            test_bytes_are_right_with_any_numbers_of_nics(built, [1, 1], 0)
        return
    if "granted" in mutant:
        (tmp_path / "plans").mkdir()
        assert replans(built, tmp_path / "plans")
        return
    with fabric_of(2, 2) as fabric:
        for name in fabric.every():  # what is overwritten too early is still on its way
            fabric.set(name, rate=50_000_000)
        env = {"OPTCC_WIRES": "rdma", "HARNESS_LIMIT_S": "30"}
        assert run(built, loopback(2, 1), prefix=hosts_of(fabric, [2, 2]), messages=300, env=env).fault


@pytest.mark.long
def test_sanitizers_find_nothing() -> None:
    built = shared_build("address,undefined")
    with fabric_of(3, 2) as fabric:
        for calls in (0, 60):  # the only NIC of rank 1 is away now and then, also when it opens
            env = {"OPTCC_WIRES": "rdma", "OPTCC_RETURN_S": "100", "HARNESS_OPEN_S": "60"}
            with Ranks(built, loopback(3, 1), calls=calls, prefix=hosts_of(fabric, [2, 1, 2]), env=env) as ranks:
                strikes = Strikes(fabric, 7)
                try:
                    outcome = ranks.outcome()
                finally:
                    strikes.stop()
            assert not outcome.unsound
