"""optcc ranks: NCCL's trees as its source has them, who stands where, what is promised and what is not."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from click.testing import CliRunner

from optcc.cli import main
from optcc.cli.ranks import advise
from optcc.discover import apply_failures
from optcc.errors import InputError
from optcc.schedule.nccl_tree import best_order, btree, tree_loads
from optcc.values.cluster import Cluster


def uniform(servers: int, nics: int = 2, fails: tuple[str, ...] = ()) -> Cluster:
    return apply_failures(Cluster.uniform(servers=servers, nics=nics, rate=Fraction(10**9)), fails)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 8, 11, 16, 33, 64])
def test_the_tree_reaches_everybody_once(count: int) -> None:
    children = [child for place in range(count) for child in btree(count, place)]
    assert sorted(children) == list(range(1, count))
    assert len(btree(count, 0)) == 1
    assert all(len(btree(count, place)) <= 2 for place in range(count))


def test_the_trees_are_those_of_nccls_source() -> None:
    """The picture in src/graph/trees.cc, of 14 ranks; an odd number is shifted by one."""
    shown = {0: [8], 8: [4, 12], 4: [2, 6], 12: [10, 13], 2: [1, 3], 6: [5, 7], 10: [9, 11]}
    assert {place: btree(14, place) for place in range(14) if btree(14, place)} == shown
    assert tree_loads(4) == [1, 2, 2, 1]
    assert tree_loads(5) == [Fraction(3, 2), 1, 2, 2, Fraction(3, 2)]
    assert max(tree_loads(16)[1:-1]) == min(tree_loads(16)[1:-1]) == 2


@pytest.mark.parametrize(("servers", "slow", "place"), [(4, 1, 0), (16, 7, 0), (5, 4, 1), (7, 0, 1)])
def test_the_slow_one_goes_where_least_is_carried(servers: int, slow: int, place: int) -> None:
    rates = [Fraction(1, 2) if server == slow else Fraction(1) for server in range(servers)]
    order = best_order(rates)
    assert order.index(slow) == place
    assert sorted(order) == list(range(servers))
    assert [server for server in order if server != slow] == [server for server in range(servers) if server != slow]


def test_two_slow_ones_stand_at_both_ends() -> None:
    order = best_order([Fraction(1), Fraction(1, 2), Fraction(1, 4), Fraction(1)])
    assert (order[0], order[-1]) == (2, 1)


@pytest.mark.parametrize(
    ("cluster", "pays"),
    [
        (uniform(4, 2, ("server1/nic0",)), True),
        (uniform(4), False),
        (uniform(16, 2, ("server3=90%",)), False),
        (uniform(2, 2, ("server1/nic0",)), False),
        (uniform(4, 2, ("server[0-2]/nic0",)), False),
    ],
)
def test_only_what_pays_is_promised(cluster: Cluster, pays: bool) -> None:
    found = advise(cluster)
    assert found["tree_pays"] is pays
    assert found["gain"][0] < found["gain"][1] == pytest.approx(found["ring"] / found["tree"])
    assert found["bound"] <= min(found["ring"], found["tree"]) + 1e-9


@pytest.mark.parametrize(
    ("fails", "out", "ring"),
    [
        (["nic0"], [], 3.0),  # 7 NICs as 4, as measured
        (["nic0", "nic1"], [], 3.0),
        (["nic0", "nic1", "nic2"], ["nic3"], 3.0),  # 5 as 2
        (["nic0", "nic1", "nic2", "nic3"], [], 3.0),
        (["nic5=37%"], ["nic5"], 3.0),  # one that holds up the others
        (["nic5=90%"], [], 1.5 / 0.9),
    ],
)
def test_nics_that_cost_more_than_they_carry_are_left_out(fails: list[str], out: list[str], ring: float) -> None:
    found = advise(uniform(4, 8, tuple(f"server2/{nic}" for nic in fails)))
    assert found["servers"][2]["leave_out"] == out
    assert found["ring"] == pytest.approx(ring)
    assert (found["ring_now"] > found["ring"]) == bool(out)


def test_the_command() -> None:
    arguments = ["ranks", "uniform:servers=4,nics=2,rate=4Gb/s", "--fail", "server2/nic1"]
    told = CliRunner().invoke(main, arguments)
    assert told.exit_code == 0
    assert "in this order: server2 server0 server1 server3" in told.stdout
    found = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    assert found["env"] == {"NCCL_ALGO": "allreduce:tree"}
    healthy = CliRunner().invoke(main, arguments[:2])
    assert healthy.stdout.startswith("Keep NCCL's ring")


def test_what_the_formulas_do_not_know_is_refused() -> None:
    with pytest.raises(InputError, match="one server"):
        advise(uniform(1))
    with pytest.raises(InputError, match="no NIC alive"):
        advise(uniform(3, 2, ("server1/nic*",)))
    done = CliRunner().invoke(main, ["ranks", "uniform:servers=4,nics=2,rate=4Gb/s", "--ranks", "gpu"])
    assert done.exit_code == 2
