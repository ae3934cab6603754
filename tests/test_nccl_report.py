"""What the operator of a job with the plugin for NCCL sees: lines, metrics, what optcc diagnose makes of them."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Callable
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from optcc.cli import main
from optcc.diagnose.evidence import NicDirections
from optcc.diagnose.plugin_evidence import LEAST_FULL
from optcc.diagnose.readers import read_text
from optcc.diagnose.verdict import Outcome, judge
from optcc.errors import InputError
from optcc.reports.metrics import PLUGIN
from optcc.values.cluster import Cluster
from tests.native_build import Mutant
from tests.nccl_ranks import Build, Ranks, ip, loopback, namespaces, run, shared_build

pytestmark = pytest.mark.cc
LIMIT_S = 60.0
SAMPLE = re.compile(r"^(\w+)\{(.*)\} (\S+)$", re.M)


@pytest.fixture(scope="module")
def built() -> Build:
    return shared_build()


def waits(what: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
    """Whether it comes true in time."""
    until = time.monotonic() + limit_s
    while not (true := what()) and time.monotonic() < until:
        time.sleep(0.05)
    return true


def samples(folder: Path, name: str) -> dict[tuple[str, str], float]:
    """(host, NIC) -> the value, of all files of a folder."""
    found = {}
    for path in folder.glob("optcc-nccl-*.prom"):
        for metric, labels, value in SAMPLE.findall(path.read_text()):
            said = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if metric == f"optcc_nccl_{name}":
                found[said["host"], said.get("nic", "")] = float(value)
    return found


def wires(folder: Path) -> list[float]:
    """What wires carried while all were busy."""
    text = "".join(path.read_text() for path in folder.glob("optcc-nccl-*.prom"))
    return [float(value) for metric, _, value in SAMPLE.findall(text) if metric == "optcc_nccl_wire_full_bytes_total"]


def deaf_threads(pid: int) -> int:
    """How many threads of a process get no signal: they are for the program's own threads."""
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return sum(bool(re.search(r"^SigBlk:\s*f", text, re.M)) for text in texts)


# --- the file ------------------------------------------------------------------------------------------------------


def test_each_process_keeps_a_file_while_it_runs(built: Build, tmp_path: Path) -> None:
    """It has the metrics that are promised, and goes with its process; what a killed one has left goes, too."""
    left, kept, others = (tmp_path / name for name in ("optcc-nccl-0123456789abcdef.prom",
                          "optcc-nccl-fedcba9876543210.prom", "node.prom"))  # fmt: skip
    for path, age_s in ((left, 3600), (kept, 10), (others, 3600)):
        path.write_text("")
        os.utime(path, (time.time() - age_s,) * 2)
    with Ranks(built, loopback(2), messages=10**6, env={"OPTCC_METRICS": str(tmp_path)}) as ranks:
        assert waits(lambda: len(samples(tmp_path, "links")) == 1 and len(list(tmp_path.glob("*.prom"))) == 4)
        assert waits(lambda: min(samples(tmp_path, "nic_sent_bytes_total").values(), default=0) > 0)
        text = max((path.read_text() for path in tmp_path.glob("*.prom")), key=len)
        assert {host for host, _ in samples(tmp_path, "links")} == {socket.gethostname()[:63]}
        assert not [log for log in ranks.folder.glob("log.*") if "NIC " in log.read_text()]
        assert {deaf_threads(process.pid) for process in ranks.processes} == {2}
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    assert types == {metric.name: "counter" if metric.name.endswith("_total") else "gauge" for metric in PLUGIN}
    assert dict(re.findall(r"^# HELP (\S+) (.+)$", text, re.M)) == {metric.name: metric.text for metric in PLUGIN}
    for name, labels, _ in SAMPLE.findall(text):
        (metric,) = (metric for metric in PLUGIN if metric.name == name)
        assert tuple(re.findall(r'(\w+)="', labels)) == metric.labels
    if find_spec("prometheus_client"):
        from prometheus_client.parser import text_string_to_metric_families

        assert len(list(text_string_to_metric_families(text))) == len(PLUGIN)
    assert (left.exists(), kept.exists(), others.exists()) == (False, True, True)
    for path in tmp_path.glob("*.prom"):
        path.unlink()
    assert not run(built, loopback(2), messages=5, env={"OPTCC_METRICS": str(tmp_path)}).fault
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_none_stops_the_job(built: Build, tmp_path: Path) -> None:
    outcome = run(built, ["127.0.0.1"], env={"OPTCC_METRICS": str(tmp_path / "none")})
    assert outcome.told == ["wrong: init"]
    assert "expected a folder in which this process may write" in outcome.logged[0]


@pytest.mark.long
def test_a_folder_that_vanishes_is_told_once_and_harms_nothing(built: Build, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    with Ranks(built, loopback(2), messages=10**6, env={"OPTCC_METRICS": str(folder)}) as ranks:
        assert waits(lambda: len(list(folder.glob("*.prom"))) == 2)
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
        folder.rename(tmp_path / "away")
        log = ranks.folder / "log.0"
        assert waits(lambda: "cannot be written" in log.read_text())
        time.sleep(2.5)
        assert log.read_text().count("cannot be written") == 1
        assert all(process.poll() is None for process in ranks.processes)


def counted_twice(folder: Path, *changes: Mutant) -> bool:
    """Whether a NIC that has carried for long, by links that are closed then, seems to have carried that at once."""
    sooner = Mutant("nccl/net.c", "UNUSED_NS = UINT64_C(20000000000)", "UNUSED_NS = UINT64_C(2000000000)")
    built = Build.wrong(folder, sooner, *changes)
    metrics = folder / "m"
    metrics.mkdir()
    env = {"OPTCC_METRICS": str(metrics), "HARNESS_IDLE_S": "30"}
    with Ranks(built, loopback(2), messages=1500, env=env) as ranks:
        log = ranks.folder / "log.0"
        assert waits(lambda: "link to process" in log.read_text())  # nobody uses it: it is over
        closed = time.time()
        assert waits(lambda: min(samples(metrics, "timestamp_seconds").values(), default=0) > closed + 1)
    sent, best = (samples(metrics, name) for name in ("nic_sent_bytes_total", "nic_best_bytes_per_second"))
    return any(best[nic] / 5 > sent[nic] for nic in sent)  # looks are a tenth of a second apart, or more


@pytest.mark.long
def test_a_link_that_is_closed_counts_once(tmp_path: Path) -> None:
    assert not counted_twice(tmp_path)


@pytest.mark.long
def test_a_link_that_is_counted_twice_is_found(tmp_path: Path) -> None:
    once = "report_link_over(r->link);"
    assert counted_twice(tmp_path, Mutant("nccl/net.c", once, f"report_link(r->link, used_now), {once}"))


# --- a NIC that is lost and comes back -----------------------------------------------------------------------------


def join(names: list[str]) -> None:
    """Every NIC reaches every NIC: one net, and what comes from an address leaves by its NIC."""
    ip("-n", names[-1], "link", "add", "j0", "type", "veth", "peer", "name", "j1")
    for rail in range(2):
        ip("-n", names[-1], "link", "set", f"j{rail}", "master", f"b{rail}", "up")
    for rank, name in enumerate(names[:-1]):
        ip("netns", "exec", name, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore")
        for rail in range(2):
            ip("-n", name, "route", "add", "10.77.0.0/16", "dev", f"r{rail}", "table", f"{101 + rail}")
            ip("-n", name, "rule", "add", "from", f"10.77.{rail}.{rank + 1}", "lookup", f"{101 + rail}")


def faults(built: Build, folder: Path, lanes: str = "rails") -> list[str]:
    """What is wrong with the lines and metrics of three hosts, one of which loses a NIC and gets it back."""
    wrong = []
    with namespaces(3) as names:
        prefix = [["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", f'hostname h{i}; exec "$@"', "sh"]
                  for i, name in enumerate(names[:-1])]  # fmt: skip
        if lanes == "all":
            join(names)
        env = {"OPTCC_METRICS": str(folder), "OPTCC_LANES": lanes}
        with Ranks(built, ["r0,r1"] * 3, messages=10**6, prefix=prefix, env=env) as ranks:

            def up() -> dict[tuple[str, str], float]:
                return samples(folder, "nic_up")

            whole = {(f"h{host}", f"r{rail}"): 1.0 for host in range(3) for rail in range(2)}
            if not waits(lambda: up() == whole and min(samples(folder, "links").values()) > 2, 30):
                return ["no files"]
            for state in ("lost", "back"):
                lost = {("h1", "r1"): 0.0} if state == "lost" else {}
                ip("-n", names[-1], "link", "set", "v1r1", "down" if lost else "up")
                if not waits(lambda want=whole | lost: up() == want, 20):  # type: ignore[misc]
                    wrong.append(f"metrics: {state} {up()}")
                time.sleep(1.5)  # peers wait until they are sure
            logs = [(ranks.folder / f"log.{rank}").read_text() for rank in range(3)]
            if samples(folder, "nic_lost_total") != {key: float(key == ("h1", "r1")) for key in whole}:
                wrong.append("metrics: how often")
    for rank, log in enumerate(logs):
        told = re.findall(r"WARN .*NET/optcc: (NIC .*)", log)
        if rank == 1:
            good = told == ["NIC r1 is lost; 1 of 2 NICs carry on", "NIC r1 is back; 2 of 2 NICs carry on"]
        else:
            said = [re.sub(r"\(.*?\) ", "", line) for line in told]
            good = said == [
                "NIC r1 of host h1 is lost, as seen from r1; 1 of 2 wires carry on",
                "NIC r1 of host h1 is back, as seen from r1; 2 of 2 wires carry on",
            ]
            if lanes == "all":  # its wires come back one after the other
                good = [line[:26] for line in said] == [f"NIC r1 of host h1 is {now}," for now in ("lost", "back")]
        if not good:
            wrong.append(f"rank {rank}: {told}")
    return wrong


@pytest.mark.namespaces
@pytest.mark.parametrize("lanes", ["rails", "all"])
def test_a_nic_that_goes_and_comes_is_one_line_each(built: Build, tmp_path: Path, lanes: str) -> None:
    """Of the host that it is of; at the others one that names it, by however many wires. The metrics say the same."""
    assert faults(built, tmp_path, lanes) == []


MUTANTS = {
    "one wire stands for its NIC": Mutant(
        "nccl/report.c", "wires_lost == look.nic[i].wires : nic->lost", "wires_lost > 0 : nic->lost"
    ),
    "what is back is not told": Mutant("nccl/report.c", "if (lost == nic->lost)", "if (lost <= nic->lost)"),
    "a NIC of ours is told as a peer's": Mutant("nccl/link.c", "if (silent || l->far_seen[far].silent)", "if (0)"),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.namespaces
@pytest.mark.parametrize("mutant", sorted(MUTANTS))
def test_a_mutant_is_found(mutant: str, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    assert faults(Build.wrong(tmp_path, MUTANTS[mutant]), tmp_path / "m")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(tmp_path: Path, kind: str) -> None:
    """The thread that writes, beside the one that counts; some seconds of it."""
    built = shared_build(kind)
    (tmp_path / "m").mkdir()
    env = {"OPTCC_METRICS": str(tmp_path / "m"), "OPTCC_RETURN_S": "100"}
    outcome = run(built, loopback(2), messages=150, cuts=3, env=env)
    assert not outcome.unsound
    assert list((tmp_path / "m").iterdir()) == []


# --- optcc diagnose ------------------------------------------------------------------------------------------------

CLUSTER = Cluster.uniform(servers=4, nics=2, rate=Fraction(10**9))
PORTS = NicDirections(CLUSTER)


def text_of(host: int, shares: dict[tuple[int, int], float], full: float = LEAST_FULL) -> str:
    """A file of a process of server `host`, which sends to the next one: (server, NIC) -> what is left of its rate;
    0: lost."""
    own, to = CLUSTER.servers[host], CLUSTER.servers[(host + 1) % 4]
    lines = []
    for nic in range(2):
        left = min(shares.get((host, nic), 1.0), shares.get(((host + 1) % 4, nic), 1.0))
        head = f'host="{own.name}.example",process="{host:016x}",nic="nic{nic}"'
        peer = f'{head},peer="{to.name}",peer_process="{(host + 1) % 4:016x}",peer_nic="nic{nic}"'
        lines += [
            f"optcc_nccl_nic_up{{{head}}} {int(left > 0)}",
            f"optcc_nccl_nic_lost_total{{{head}}} {int(left == 0)}",
            f"optcc_nccl_wire_up{{{peer}}} {int(left > 0)}",
            f"optcc_nccl_wire_full_bytes_total{{{peer}}} {full * left:.0f}",
        ]
    return "\n".join(lines) + "\n"


def verdict_of(shares: dict[tuple[int, int], float], **more: float) -> tuple[Outcome, dict[str, float]]:
    text = "".join(text_of(host, shares, **more) for host in range(4))
    made = judge(read_text(text, "all.prom", PORTS), PORTS)
    return made.outcome, {one.nic: one.left for one in made.findings}


@pytest.mark.parametrize("left", [0.0, 0.25, 0.5, 0.7])
def test_the_slow_nic_is_named_and_by_how_much(left: float) -> None:
    outcome, found = verdict_of({(1, 0): left})
    assert outcome == "degraded"
    assert list(found) == ["server1/nic0"]
    assert found["server1/nic0"] == pytest.approx(left, abs=0.01)


def test_two_slow_nics_are_both_named() -> None:
    assert set(verdict_of({(0, 1): 0.5, (2, 0): 0.4})[1]) == {"server0/nic1", "server2/nic0"}


def test_what_is_well_or_was_not_busy_names_nobody() -> None:
    assert verdict_of({})[1] == {}
    assert verdict_of({(1, 0): 0.5}, full=LEAST_FULL / 10)[1] == {}


def test_strangers_in_a_file() -> None:
    text = text_of(0, {}).replace('peer="server1"', 'peer="elsewhere"').replace('nic="nic1"', 'nic="eth7"')
    found = read_text(text, "x.prom", PORTS)
    assert found.observations == ()
    assert "eth7 of server0" in found.unused[0]
    assert "wires to hosts or NICs" in found.unused[-1]
    with pytest.raises(InputError, match="a host that the topology does not have"):
        read_text(text_of(0, {}).replace('host="server0', 'host="other'), "x.prom", PORTS)


@pytest.mark.parametrize("value", ["1e999", "-1e999", "-1", "-5e9", "nan", "1e", "+-"])
def test_values_that_no_counter_has_say_nothing(value: str) -> None:
    text = re.sub(r" \d+$", f" {value}", text_of(0, {(1, 0): 0.5}), flags=re.M)
    found = read_text(text + text_of(2, {}), "x.prom", PORTS)
    assert (found.signs, {one.run[:16] for one in found.observations}) == ((), {f"{2:016x}"})


def test_lines_of_the_log_are_signs() -> None:
    """Of our own NIC and of a peer's; who is back is no grave sign."""
    lines = [
        "NIC nic1 is lost; 1 of 2 NICs carry on",
        "NIC nic0 of host server2 (process 6fe34ce7fd184ff5) is lost, as seen from nic0; 1 of 2 wires carry on",
        "NIC nic1 is back; 2 of 2 NICs carry on",
    ]
    log = "\n".join(f"server1:77:78 [0] net.c:122 NCCL WARN NET/optcc: {line}" for line in lines)
    found = read_text(log + "\n", "job.log", PORTS)
    signs = [(PORTS.names[one.nic or 0], one.what, one.grave) for one in found.signs]
    assert signs == [
        ("server1/nic1", "event: lost, by optcc's plugin", True),
        ("server2/nic0", "event: lost, by optcc's plugin", True),
        ("server1/nic1", "event: back, by optcc's plugin", False),
    ]
    assert not any("trouble" in line for line in found.unused)


def limit(names: list[str], slow: tuple[int, int] | None = None) -> list[list[str]]:
    """Give NICs of three hosts a rate, (host, rail) half of it; returns how ranks are started there."""
    for host in range(3):
        for rail in range(2):
            mbit = "40mbit" if (host, rail) == slow else "80mbit"
            for name, device in ((names[host], f"r{rail}"), (names[-1], f"v{host}r{rail}")):
                command = ["tc", "-n", name, "qdisc", "replace", "dev", device, "root", "tbf", "rate", mbit]
                subprocess.run([*command, "burst", "64kb", "limit", "4mb"], check=True)
    return [["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", f'hostname server{i}; exec "$@"', "sh"]
            for i, name in enumerate(names[:-1])]  # fmt: skip


def begins_anew(built: Build, folder: Path) -> bool:
    """Whether shares are counted anew, by both wires to a host, when one of them is back after a loss."""
    with namespaces(3) as names:
        env = {"OPTCC_METRICS": str(folder), "HARNESS_BYTES": str(4 << 20)}
        with Ranks(built, ["r0,r1"] * 3, calls=10**6, prefix=limit(names), env=env):

            def full() -> list[float]:  # the two of who sends to it come last
                text = "".join(path.read_text() for path in folder.glob("*.prom"))
                name = "optcc_nccl_wire_full_bytes_total"
                found = [found for found in SAMPLE.findall(text) if found[0] == name and 'peer="server1"' in found[1]]
                return sorted(float(value) for _, _, value in found)

            assert waits(lambda: min(full()[-2:], default=0) >= 4 * LEAST_FULL, 120), full()
            for state, value in (("down", 0.0), ("up", 1.0)):
                ip("-n", names[-1], "link", "set", "v1r1", state)
                assert waits(lambda value=value: samples(folder, "nic_up")["server1", "r1"] == value, 30)  # type: ignore[misc]
            return waits(lambda: max(full()) < 2 * LEAST_FULL, 10)


@pytest.mark.long
@pytest.mark.namespaces
def test_a_nic_that_was_away_is_not_slow(built: Build, tmp_path: Path) -> None:
    assert begins_anew(built, tmp_path)


@pytest.mark.long
@pytest.mark.namespaces
def test_a_slow_nic_of_a_job_is_diagnosed(built: Build, tmp_path: Path) -> None:
    """Three hosts over NICs with rates, AllReduces by CollNet; the files of the running job name the slow one."""
    with namespaces(3) as names:
        prefix = limit(names, slow=(1, 1))
        env = {"OPTCC_METRICS": str(tmp_path), "HARNESS_BYTES": str(4 << 20)}
        with Ranks(built, ["r0,r1"] * 3, calls=10**6, prefix=prefix, env=env):
            assert waits(lambda: sum(value >= LEAST_FULL for value in wires(tmp_path)) >= 2, 120), wires(tmp_path)
            texts = [path.read_text().replace('nic="r', 'nic="nic') for path in tmp_path.glob("*.prom")]
    (tmp_path / "all.prom").write_text("".join(texts))
    topology = "uniform:servers=3,nics=2,rate=80Mb/s"
    done = CliRunner().invoke(main, ["diagnose", topology, str(tmp_path / "all.prom"), "--check"])
    assert done.exit_code == 1, done.output
    assert "server1/nic1" in done.stdout
    assert not re.search(r"server[02]/nic\d.* (certain|likely)", done.stdout)
