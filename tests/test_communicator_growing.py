"""New ranks in a communicator: they come, they do not, they die on the way; the old one is never lost with them."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import optcc
from optcc.errors import InputError
from optcc.runtime.control.channel import Control
from optcc.runtime.control.rendezvous import Membership
from optcc.runtime.errors import GrowFailedError, RankFailedError
from tests.communicators import WAIT_S, Ranks
from tests.free_port import free_port
from tests.left_behind import descriptors
from tests.test_architecture import ROOT

AS_IT_WAS = "; the communicator of 3 ranks is as it was"


def address() -> str:
    return f"127.0.0.1:{free_port()}"


def total(comm: optcc.Communicator) -> float:
    """Of small and large buffers, the same of both."""
    small, large = comm.all_reduce(np.full(3, comm.rank + 1.0)), comm.all_reduce(np.full(100_000, comm.rank + 1.0))
    assert (large == small[0]).all()
    return float(small[0])


def joining(where: str, rank: int, world: int, cluster: Any = None) -> optcc.Communicator:
    return optcc.Communicator(cluster, rendezvous=where, rank=rank, world=world)


def grown(old: list[Callable[[], optcc.Communicator]], new: list[Callable[[], optcc.Communicator]]) -> list[float]:
    """What the ranks of a communicator that comes of these calls have summed; it is closed then."""

    def use(made: Callable[[], optcc.Communicator]) -> float:
        with made() as comm:
            return total(comm)

    with ThreadPoolExecutor(len(old) + len(new)) as pool:
        return [each.result(WAIT_S) for each in [pool.submit(use, made) for made in [*old, *new]]]


def failed(found: list[Any], kind: type[Exception]) -> str:
    assert all(isinstance(each, kind) for each in found), found
    assert len({str(each) for each in found}) == 1, "all say the same"
    return str(found[0])


def test_two_new_ranks_come_and_the_old_communicator_stays() -> None:
    where = address()
    with Ranks(3) as ranks:
        assert ranks.good(total) == [6.0] * 3
        old = [lambda comm=comm: comm.grow(5, where) for comm in ranks.comms]
        assert grown(old, [lambda: joining(where, 3, 5), lambda: joining(where, 4, 5)]) == [15.0] * 5
        assert ranks.good(total) == [6.0] * 3


def test_a_new_rank_after_one_was_lost() -> None:
    where = address()
    with Ranks(3) as ranks:
        ranks.good(total)
        ranks.comms[1].abort("on purpose")
        failed([ranks.each(total)[rank] for rank in (0, 2)], RankFailedError)
        left = [ranks.comms[rank] for rank in (0, 2)]

        def renewed(comm: optcc.Communicator) -> optcc.Communicator:
            with comm.shrink() as fewer:
                comm.close()
                assert total(fewer) == 3.0
                return fewer.grow(3, where)

        old = [lambda comm=comm: renewed(comm) for comm in left]
        assert grown(old, [lambda: joining(where, 2, 3)]) == [6.0] * 3


def test_one_alone_takes_another_in() -> None:
    where = address()
    with optcc.Communicator() as comm:
        assert grown([lambda: comm.grow(2, where)], [lambda: joining(where, 1, 2)]) == [3.0] * 2


def test_one_that_does_not_come_costs_nothing() -> None:
    where = address()
    with Ranks(3) as ranks:
        found = ranks.each(lambda comm: comm.grow(4, where, within_s=0.5))
        text = failed(found, GrowFailedError)
        assert text.startswith(
            "cannot grow from 3 to 4 ranks: rank 3 failed: not there: 1 of 4 ranks have not come to "
        )
        assert text.endswith(f"within 0.5 s: 3{AS_IT_WAS}")
        assert [error.rank for error in found] == [3] * 3
        assert ranks.good(total) == [6.0] * 3
        old = [lambda comm=comm: comm.grow(4, where) for comm in ranks.comms]
        assert grown(old, [lambda: joining(where, 3, 4)]) == [10.0] * 4


def test_one_that_dies_while_it_joins_costs_nothing() -> None:
    where = address()
    host, _, port = where.rpartition(":")

    def dies() -> None:
        with Control.join(Membership(3, 4, (host, int(port)), "optcc", ""), 60):
            pass

    with Ranks(3) as ranks:
        dying = threading.Thread(target=dies)
        dying.start()
        text = failed(ranks.each(lambda comm: comm.grow(4, where)), GrowFailedError)
        dying.join()
        gone = "its process has ended, or its connection was cut"
        assert text == f"cannot grow from 3 to 4 ranks: rank 3 failed: {gone}{AS_IT_WAS}"
        assert ranks.good(total) == [6.0] * 3


def test_one_that_comes_with_another_cluster_is_refused() -> None:
    where, three, four = address(), "uniform:servers=3,nics=1,rate=1Gb/s", "uniform:servers=4,nics=1,rate=1Gb/s"
    with Ranks(3, three) as ranks, ThreadPoolExecutor(1) as pool:
        comes = pool.submit(joining, where, 3, 4, "uniform:servers=4,nics=2,rate=1Gb/s")
        text = failed(ranks.each(lambda comm: comm.grow(4, where, cluster=four)), GrowFailedError)
        assert "cluster: rank 3 was given another one than rank 0" in text
        assert isinstance(comes.exception(WAIT_S), InputError)
        assert ranks.good(total) == [6.0] * 3


def test_one_of_the_old_ranks_is_lost_meanwhile() -> None:
    where = address()
    with Ranks(3) as ranks:

        def call(comm: optcc.Communicator) -> Any:
            if comm.rank == 2:
                return comm.abort("on purpose")
            return comm.grow(4, where, within_s=0.5)

        text = failed(ranks.each(call)[:2], RankFailedError)
        assert text == "rank 2 failed: left: on purpose"
        fewer = [ranks.comms[rank].shrink for rank in (0, 1)]
        assert grown(fewer, []) == [3.0] * 2


def test_a_nic_that_has_died_stays_out() -> None:
    where, four = address(), "uniform:servers=4,nics=2,rate=1Gb/s"
    with Ranks(3, "uniform:servers=3,nics=2,rate=1Gb/s") as ranks:
        ranks.good(lambda comm: comm.strike("cut", "server1/nic0", 0.5))
        ranks.good(total)
        ranks.good(lambda comm: [comm.barrier() for _ in range(50)])

        def use(comm: optcc.Communicator) -> list[str]:
            with comm:
                assert total(comm) == 10.0
                return [f"{s.name}/{n.name}" for s in comm.cluster.servers for n in s.nics if not n.alive]

        with ThreadPoolExecutor(1) as pool:
            comes = pool.submit(lambda: use(joining(where, 3, 4, four)))
            assert ranks.good(lambda comm: use(comm.grow(4, where, cluster=four))) == [["server1/nic0"]] * 3
            assert comes.result(WAIT_S) == ["server1/nic0"]


def test_what_cannot_be_is_refused_and_costs_nothing() -> None:
    given = "uniform:servers=2,nics=1,rate=1Gb/s"
    with Ranks(2, given) as ranks, socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        three = "uniform:servers=3,nics=1,rate=1Gb/s"
        for call, words in [
            (lambda comm: comm.grow(2, where), "world: not larger, expected more than 2, got 2"),
            (lambda comm: comm.grow(3, where), "cluster: none, expected the cluster of all 3 ranks"),
            (lambda comm: comm.grow(3, where, cluster=given), "cluster: another number of ranks"),
            (lambda comm: comm.grow(3, where, cluster=three), "grow: cannot listen for ranks at 127.0.0.1"),
            (
                lambda comm: comm.grow(3 + comm.rank, where, cluster="uniform:servers=1,nics=1,rate=1Gb/s"),
                "want the same",
            ),
        ]:
            for error in ranks.each(call):
                assert isinstance(error, InputError)
                assert words in str(error)
        assert ranks.good(total) == [3.0] * 2


def test_nothing_is_left_behind() -> None:
    def use() -> None:
        where = address()
        with Ranks(2) as ranks:
            ranks.each(lambda comm: comm.grow(3, where, within_s=0.2))
            old = [lambda comm=comm: comm.grow(3, where) for comm in ranks.comms]
            grown(old, [lambda: joining(where, 2, 3)])

    use()
    before, threads = descriptors(), threading.active_count()
    use()
    assert descriptors() == before
    assert threading.active_count() == threads


# --- the example -----------------------------------------------------------------------------------------------------

EXAMPLE = ROOT / "examples" / "survive_rank.py"


def trained(script: Path) -> tuple[int, str]:
    """(exit status, what the ranks have said, in any order) of training that loses a rank and takes one in."""
    done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, cwd=ROOT, timeout=WAIT_S)
    return done.returncode, done.stdout


def test_the_example_loses_rank_0_takes_a_new_one_in_and_ends_with_the_same_weights() -> None:
    status, said = trained(EXAMPLE)
    assert status == 0, said
    lost = re.findall(r"rank (\d) of 4 goes on in step 12: (rank 0 failed: [^\n]*?)(?=rank \d of|\n)", said)
    assert sorted(rank for rank, _ in lost) == ["1", "2", "3"], said
    assert len({verdict for _, verdict in lost}) == 1, "all are told the same"
    ended = re.findall(r"rank (\d) of 4: 30 steps, the weights of a run without loss, bit for bit", said)
    assert sorted(ended) == ["0", "1", "2", "3"], said


@pytest.mark.long
def test_the_example_notices_other_weights(tmp_path: Path) -> None:
    """While they are three, nobody computes the parts of the rank that was lost."""
    shares, text = "range(rank, SHARES, world)", EXAMPLE.read_text()
    assert text.count(shares) == 1
    mutant = tmp_path / "mutant.py"
    mutant.write_text(text.replace(shares, "range(rank, SHARES, 1 if world == 1 else WORLD)"))
    status, said = trained(mutant)
    assert status == 1
    assert said.count("30 steps, other weights than without loss") == 4, said


# --- what a call that fails leaves -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "out", "left"), [(10, False, "old"), (1 << 20, False, "none"), (1 << 20, True, "none")]
)
def test_a_call_that_fails_says_what_it_leaves(count: int, out: bool, left: str) -> None:
    with Ranks(3, tune=False) as ranks:
        ranks.good(lambda comm: comm.all_reduce(np.zeros(count)))
        for comm in ranks.comms:
            comm._collectives.wrote = False

        def call(comm: optcc.Communicator) -> Any:
            if comm.rank == 2:
                until = time.monotonic() + WAIT_S
                while left == "none" and not all(other._collectives.wrote for other in ranks.comms[:2]):
                    assert time.monotonic() < until, "the others are to be in the middle of their calls"
                    time.sleep(0.001)
                return comm.abort("on purpose")
            x, result = np.full(count, comm.rank + 1.0), np.full(count, 9.0) if out else None
            with pytest.raises(RankFailedError) as first:
                comm.all_reduce(x, out=result)
            with pytest.raises(RankFailedError) as again:
                comm.all_reduce(x, out=result)
            held = (x == comm.rank + 1.0).all()
            return first.value.result, first.value.__notes__, again.value.result, str(first.value), bool(held)

        holds = {"old": "is as it was before", "none": "holds no result, nor what it did before"}[left]
        note = [f"the call's result buffer {holds}"]
        for first, notes, again, text, held in ranks.good(call)[:2]:
            assert (first, notes, text) == (left, note, "rank 2 failed: left: on purpose")
            assert again == "old", "what fails at once has written nothing"
            assert held or (left == "none" and not out), "the input is only spoilt where it is the result"
