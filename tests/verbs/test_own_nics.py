"""Faults of a machine's own RDMA NICs, whose network nobody here can spoil: a cut puts a NIC's queue pairs into error.

Played and soft NICs stand for them; what could spoil their network is hidden from the ranks, which are forked.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from optcc.errors import InputError
from optcc.runtime import RankFailedError
from optcc.runtime.control import launch, transports
from optcc.runtime.control.launch import Collective, Session
from optcc.runtime.messages import Strike
from optcc.runtime.native.wires import QueuePairNics
from tests.failover_runs import InconclusiveError
from tests.verbs.conftest import command_environment, needs_package
from tests.verbs.test_command import OPTIONS, topology
from tests.verbs.test_failover import RATE, job

pytestmark = pytest.mark.rdma
CAUSES = {"cut": "port event", "fatal": "device fatal"}


@pytest.fixture
def own(network: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Ranks for which all NICs are a machine's own."""
    from lab.allreduce import Forked

    monkeypatch.setattr(launch, "start_rank", Forked)
    monkeypatch.setattr(transports, "_network", lambda: None)
    for nic in range(8):
        network.rate(nic, 8 * RATE)
    return network


def down(done: Collective, nic: str) -> list[str]:
    """The causes with which a NIC's own rank has told that it is down, once it was struck."""
    if nic not in {note.nic for note in done.notes if note.kind == "struck"}:
        raise InconclusiveError(f"inconclusive: {nic} was not struck")
    return [note.cause for note in done.notes if (note.kind, note.nic) == ("nic down", nic)]


@pytest.mark.parametrize("kind", CAUSES)
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_nic_is_cut_off_and_does_not_return(own: ModuleType, ranks: int, kind: str) -> None:
    """By wires made anew a link that was cut is down as before; a device that had failed is opened anew."""
    with Session(job(ranks=ranks)) as session:
        done = session.run("it", [Strike(kind, "server1/rxe2", 0.4)])
        assert down(done, "server1/rxe2") == [CAUSES[kind]]
        assert all(done.exact)
        lost = {(note.nic, note.far) for note in done.notes if note.kind == "lost"}
        assert any(far == "server1/rxe2" for _, far in lost), "its peers have noticed"
        assert {nic for ends in lost for nic in ends if nic.startswith("server1")} == {"server1/rxe2"}
        again = session.run("it")
        assert all(again.exact)
        assert again.ran[1].sent["server1/rxe2"] == 0 < again.ran[1].sent["server1/rxe3"]
        session.adopt(job(ranks=ranks))
        anew = session.run("it")
    assert all(anew.exact)
    assert (anew.ran[1].sent["server1/rxe2"] == 0) == (kind == "cut")


def test_one_nic_of_each_rank_is_cut_off_and_another_later(own: ModuleType) -> None:
    with Session(job(ranks=3)) as session:
        cut = ["server0/rxe0", "server1/rxe2", "server2/rxe5"]
        done = session.run("it", [Strike("cut", nic, 0.1 + 0.2 * i) for i, nic in enumerate(cut)])
        assert all(done.exact)
        assert [down(done, nic) for nic in cut] == [["port event"]] * 3


def test_a_rank_without_nics_is_named_by_every_rank(own: ModuleType) -> None:
    with pytest.raises(RankFailedError) as caught, Session(job(ranks=3)) as session:
        session.run("it", [Strike("cut", f"server1/rxe{nic}", 0.3) for nic in (2, 3)])
    assert caught.value.rank == 1
    assert "no wire left of 4" in caught.value.cause
    assert caught.value.seen_by == dict.fromkeys(range(3), str(caught.value))


COMMAND = """
import sys
from lab.allreduce import Forked
from optcc.cli import main
from optcc.runtime.control import launch, transports
launch.start_rank, transports._network = Forked, lambda: None
sys.exit(main())
"""


@needs_package("click")
def test_the_command_cuts_a_nic_of_the_machines_own(own: ModuleType, tmp_path: Path) -> None:
    file = topology(own, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "run", str(file), *OPTIONS, "--cut", "server1/rxe2@0.4"],
        env=command_environment(), capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "server1/rxe2: cut at" in done.stdout
    assert "by port event" in done.stdout
    assert done.stdout.count("exact") == 4, "in the timeline; before, during and after"


def test_what_cannot_be_done_to_them_is_refused() -> None:
    nics = QueuePairNics()
    for name in ("mend", "darken", "heal", "slow", "fail_out", "fail_in", "fail_nic"):
        with pytest.raises(InputError, match="cannot be done to these NICs"):
            getattr(nics, name)
    with pytest.raises(AttributeError):
        nics.break_path  # noqa: B018
