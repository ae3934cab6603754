"""GOAL schedules, and the order of sends in files: what is written keeps it, and a file without it is found out."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import optcc
from optcc.cli import main
from optcc.errors import InputError, VerifyError
from optcc.export import formats, goal, sends
from optcc.export.formats import reader_of
from optcc.export.sends import Node, out_of_order
from optcc.plans.files import save_plan
from optcc.plans.plan import Plan
from optcc.schedule.ring import NicSpread, PlainRing
from optcc.values.cluster import Cluster

MIB = 2**20
RATE = 10**9


@cache
def plan(servers: int = 4, nics: int = 2, dead: int = 1, segments: int = 8, nbytes: int = 64 * MIB) -> Plan:
    """`dead` NICs of one server are."""
    cluster = Cluster.uniform(servers=servers, nics=nics, rate=RATE)
    for nic in range(dead):
        cluster = cluster.degrade(f"server1/nic{nic}")
    return optcc.plan(cluster, nbytes, segments=segments)


def ring(servers: int) -> Plan:
    return replace(plan(servers, 1, 0), recipe=PlainRing(8, NicSpread.RATE))


@cache
def text() -> str:
    return goal.export(plan())


def files() -> list[list[Node]]:
    return goal.load(text())


def changed(**values: object) -> list[list[Node]]:
    """The last send of rank 0 that waits for something, with other values."""
    mine = files()
    which = [node.id for node in mine[0] if node.sends and node.deps][-1]
    mine[0][which] = replace(mine[0][which], **values)  # type: ignore[arg-type]
    return mine


def test_a_schedule_can_be_read_back_and_adds_everything_once() -> None:
    made, again = plan().schedule(), files()
    assert goal.dump(again, _receive_path()) == text()
    assert sends.run(again).operations == sum(map(len, again))
    assert sum(node.nbytes for nodes in again for node in nodes if node.sends) == made.length.sum()
    assert out_of_order(again)[0] == 0


def _receive_path() -> list[int]:
    found = {int(tag): int(cpu) for tag, cpu in re.findall(r"send .* tag (\d+) cpu (\d+)", text())}
    return [found[tag] for tag in range(len(found))]


def test_nics_are_numbered_over_all_servers_on_both_sides() -> None:
    """What leaves by a NIC has its number as nic, what arrives at one has its number as cpu."""
    names = [port.name for port in plan().schedule().ports]
    for line in re.findall(r"l\d+: send .*", text()):
        nic, cpu = int(line.rpartition(" nic ")[2]), int(re.search(r"cpu (\d+)", line)[1])  # type: ignore[index]
        assert 0 <= nic < len(names)
        assert 0 <= cpu < len(names)
        assert names[nic].split("/")[0] != names[cpu].split("/")[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"deps": ()}, "race"),
        ({"peer": 3, "tag": 10**6}, "missing"),
        ({"nbytes": 8}, "differ"),
        ({"order": (10**6,)}, "not there"),
    ],
)
def test_faults_in_schedules(change: dict[str, object], message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        sends.run(changed(**change))


def test_an_order_that_goes_in_circles_is_a_deadlock() -> None:
    mine = files()
    own = [node for node in mine[0] if node.sends]
    first = next(node for node in own if not node.order)
    mine[0][first.id] = replace(first, order=(own[-1].id,))
    with pytest.raises(VerifyError, match="deadlock"):
        sends.run(mine)


def _with(mine: list[list[Node]], rank: int, id_: int, **more: tuple[int, ...]) -> list[list[Node]]:
    """A copy in which that node waits for more."""
    node = mine[rank][id_]
    changed = replace(node, **{name: (*getattr(node, name), *ids) for name, ids in more.items()})  # type: ignore[arg-type]
    return [[changed if each is node else each for each in nodes] for nodes in mine]


@pytest.mark.parametrize("name", ["goal", "chakra"])
def test_every_circle_of_a_receive_and_a_send_is_told(name: str) -> None:
    """Each receive waits for a send that waits for it, by what the format calls data and control alike."""
    from optcc.export import chakra

    small = plan(segments=2)
    arrives, label = [0] * 10**4, "l" if name == "goal" else "node "
    mine = goal.load(goal.export(small)) if name == "goal" else [[*chakra.load(each)] for each in chakra.export(small)]
    found = 0
    for rank, nodes in enumerate(mine):
        for send in nodes[::3]:
            for receive, how in product(send.deps, ("deps", "order")):
                wrong = _with(mine, rank, receive, **{how: (send.id,)})
                if name == "goal":
                    again = goal.load(goal.dump(wrong, arrives))
                else:
                    again = [[*chakra.load(chakra.dump(each))] for each in wrong]
                with pytest.raises(VerifyError, match="deadlock: a circle") as caught:
                    sends.run(again, label)
                assert {f"send {label}", f"receive {label}"} <= set(
                    re.findall(rf"(?:send|receive) {label}", str(caught.value))
                )
                found += 1
    assert found > 10


def test_what_waits_for_a_send_waits_but_not_for_its_receive() -> None:
    """Each of two receives waits for its rank's send: fine, since a send is done when its bytes have been read."""
    ways = [(0, 1), (1, 2), (2, 0)]
    ring = [[] for _ in ways]  # type: list[list[Node]]
    for tag, (src, dst) in enumerate([*ways, *ways]):
        reduce = True
        ring[src].append(Node(len(ring[src]), True, dst, tag, 8, 8 * tag, reduce, ()))
        ring[dst].append(Node(len(ring[dst]), False, src, tag, 8, 8 * tag, reduce, (), (0,) if ring[dst] else ()))
    with pytest.raises(VerifyError, match="missing"):  # it runs to its end, and sums too little
        sends.run(ring)


def test_a_wait_over_other_bytes_orders_these_too() -> None:
    """Rank 1 copies back what it has summed; that rank 0 had sent before is known by way of other bytes alone."""

    def node(sends: bool, tag: int, offset: int, add: bool, *deps: int) -> tuple[bool, int, int, bool, tuple[int, ...]]:
        return sends, tag, offset, add, deps

    one = [node(True, 0, 0, True), node(True, 1, 8, True), node(False, 2, 8, False), node(False, 3, 0, False)]
    # Rank 1 sends bytes 8..15 back after both have landed, and bytes 0..7 after that send's own wait only.
    two = [node(False, 0, 0, True), node(False, 1, 8, True), node(True, 2, 8, False, 0, 1), node(True, 3, 0, False, 0)]
    both = [
        [Node(i, sends, 1 - rank, tag, 8, offset, add, deps) for i, (sends, tag, offset, add, deps) in enumerate(mine)]
        for rank, mine in enumerate((one, two))
    ]
    assert sends.run(both).nbytes == 16


def test_nothing_is_no_sum() -> None:
    with pytest.raises(VerifyError, match="nothing is sent"):
        sends.run([[], [], []])


def test_a_chain_orders_no_bytes() -> None:
    """A send that waits for another one instead of for the bytes that it sends is a race."""
    mine = changed(deps=())
    assert out_of_order(mine)[0] == 0
    with pytest.raises(VerifyError, match="race"):
        sends.run(mine)


@pytest.mark.parametrize(
    "made",
    [
        optcc.plan(Cluster.uniform(servers=3, nics=2, rate=RATE).degrade("server0/nic0", 0.5), MIB, segments=1),
        optcc.plan(
            replace(Cluster.uniform(servers=2, nics=2, gpus=2, rate=RATE, nvlink_rate=RATE), gpu_ranks=True), MIB
        ),
    ],
    ids=["half a NIC", "NVLink"],
)
def test_other_rates_are_refused(made: Plan) -> None:
    with pytest.raises(InputError, match="one rate"):
        goal.export(made)


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "num_ranks 2",
        "num_ranks 1\nrank 0 {\nl0: send 8b to 1 tag 0 cpu 0 nic 0\n}",
        "num_ranks 1\nrank 0 {\ncalc 5\n}",
        "num_ranks 1\nrank 0 {\nl0 requires l7\n}\nrank 5 {\n}",
        "{}",
    ],
)
def test_other_schedules_are_refused(broken: str) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        goal.load(broken)


# optcc verify FILE


def verify(path: Path, *args: str) -> Result:
    return CliRunner().invoke(main, ["verify", str(path), *args])


@pytest.mark.parametrize("name", ["mscclpp", "goal", "chakra"])
def test_verify_knows_what_was_exported(name: str, tmp_path: Path) -> None:
    done = formats.write(plan(), name, tmp_path / "out", segments=1)
    value = json.loads(verify(done.files[-1], "--json").stdout)
    assert (value["format"], value["operations"], value["kept"]) == (name, done.operations, True)
    assert "order of sends  kept" in verify(done.files[-1]).stdout


def test_verify_says_when_the_order_is_lost(tmp_path: Path) -> None:
    loose = [[replace(node, order=()) for node in nodes] for nodes in files()]
    (tmp_path / "out.goal").write_text(goal.dump(loose, _receive_path()))
    done = verify(tmp_path / "out.goal")
    assert done.exit_code == 0
    assert "LOST" in done.stdout


def test_verify_says_when_the_order_of_a_trace_is_lost(tmp_path: Path) -> None:
    from optcc.export import chakra

    for rank, content in enumerate(chakra.export(plan())):
        nodes = chakra.load(content)
        assert out_of_order([nodes])[0] == 0
        loose = [replace(node, order=()) for node in nodes]
        (tmp_path / f"out.{rank}.et").write_bytes(chakra.dump(loose))
    reader = reader_of(tmp_path / "out.2.et")
    assert reader is not None
    assert not reader().kept


def test_verify_of_a_wrong_file_fails(tmp_path: Path) -> None:
    (tmp_path / "out.goal").write_text(re.sub(r"\nl\d+ requires .*", "", text()))
    done = verify(tmp_path / "out.goal")
    assert (done.exit_code, "race" in done.stderr) == (1, True)
    (tmp_path / "lone.0.goal").write_bytes(b"num_ranks \xff")
    assert verify(tmp_path / "lone.0.goal").exit_code == 2
    assert verify(tmp_path / "no" / "out.0.et").exit_code == 2


def test_verify_still_reads_plans(tmp_path: Path) -> None:
    save_plan(plan(), tmp_path / "plan.json")
    assert reader_of(tmp_path / "plan.json") is None
    assert "every contribution exactly once" in verify(tmp_path / "plan.json").stdout


@pytest.mark.parametrize("name", ["goal", "chakra"])
def test_the_time_of_links_alone_is_told(name: str, tmp_path: Path) -> None:
    done = formats.write(plan(), name, tmp_path / "out")
    assert done.ideal_s == optcc.simulate(plan().schedule()).time_s
    assert done.predicted_s is None
    save_plan(plan(), tmp_path / "plan.json")
    arguments = ["export", str(tmp_path / "plan.json"), "--format", name, "-o", str(tmp_path / "x")]
    told = CliRunner().invoke(main, arguments)
    assert re.search(r"^simulated .* if nothing but the links took time$", told.stdout, re.MULTILINE)


# LogGOPSim, where it is built


def loggopsim(schedule: str, folder: Path, latency: int = 0) -> float:
    """Seconds until the last rank is done; `latency` in nanoseconds, which are bytes at 1 GB/s."""
    (folder / "in.goal").write_text(schedule)
    binary = str(folder / "in.bin")
    subprocess.run(
        ["txt2bin", "-i", str(folder / "in.goal"), "-o", binary], check=True, capture_output=True, timeout=600
    )
    arguments = ["-L", str(latency), "-o", "0", "-g", "0", "-G", "1", "-S", str(goal.LONGEST)]
    done = subprocess.run(
        ["LogGOPSim", "-f", binary, *arguments], check=True, capture_output=True, text=True, timeout=600
    )
    return max(int(time) for time in re.findall(r"Host \d+: (\d+)", done.stdout)) / RATE


@pytest.mark.loggopsim
@pytest.mark.parametrize("latency", [0, 5000])
@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: ring(4), id="ring of 4"),
        pytest.param(lambda: ring(8), id="ring of 8"),
        pytest.param(lambda: plan(4, 1, 0), id="nested rings of 4"),
        pytest.param(lambda: plan(4, 2, 1, 32), id="2 NICs, 1 dead"),
        pytest.param(lambda: plan(8, 8, 4, 64, 256 * MIB), id="8 NICs, 4 dead", marks=pytest.mark.long),
    ],
)
def test_loggopsim_agrees_with_the_simulator(made, latency: int, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    mine = made()
    told = optcc.simulate(mine.schedule(), alpha=latency / RATE).time_s
    assert loggopsim(goal.export(mine), tmp_path, latency) == pytest.approx(told, rel=0.01)


@pytest.mark.loggopsim
def test_loggopsim_takes_longer_without_the_order(tmp_path: Path) -> None:
    loose = [[replace(node, order=()) for node in nodes] for nodes in files()]
    assert loggopsim(goal.dump(loose, _receive_path()), tmp_path) > 1.05 * loggopsim(text(), tmp_path)
