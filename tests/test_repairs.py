"""What to repair together where no repair helps alone: exact savings, minimal sets."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

from click.testing import CliRunner, Result

from optcc import Cluster
from optcc.cli import main
from optcc.discover import apply_failures, load_topology
from optcc.theory.bounds import lower_bound
from optcc.theory.sensitivity import repair_first, repair_together

N = 2**30
RAILS = "uniform:servers=4,nics=4,rate=400Gb/s,fabric=rails"


def hurt(topology: str, *failures: str) -> Cluster:
    return apply_failures(load_topology(topology).cluster, failures)


def repaired(cluster: Cluster, *names: str) -> Fraction:
    """The bound once these NICs are as before."""
    for s, server in enumerate(cluster.servers):
        for i, nic in enumerate(server.nics):
            if f"{server.name}/{nic.name}" in names:
                cluster = cluster.with_nic(s, i, cluster.fault_free.servers[s].nics[i])
    return lower_bound(cluster, N).seconds


def test_equally_slow_servers_need_one_nic_each() -> None:
    """Of three servers with 3 of 8 NICs left each the cut limits; with 4 left, the traffic of all."""
    cluster = hurt("uniform:servers=8,nics=8,rate=400Gb/s", "server[1-3]/nic[0-4]", "server6/nic1=30%")
    assert all(repair.saved_s == 0 for repair in repair_first(cluster, N))
    (step,) = repair_together(cluster, N)
    assert step.nics == ("server1/nic0", "server2/nic0", "server3/nic0")
    rate = 50 * 10**9
    assert (
        step.repaired_s == Fraction(14 * N, rate * (4 * 8 + 3 * 4) + rate * 73 // 10) == repaired(cluster, *step.nics)
    )
    assert step.saved_s == Fraction(N, 3 * rate) - step.repaired_s
    for spared in step.nics:
        assert repaired(cluster, *(set(step.nics) - {spared})) == Fraction(N, 3 * rate), "each of them is needed"


def test_a_rail_that_is_dead_everywhere_is_one_repair() -> None:
    cluster = hurt(RAILS, "server*/nic0", "server2/nic3")
    steps = repair_together(cluster, N)
    assert [step.nics for step in steps] == [tuple(f"server{s}/nic0" for s in range(4))]
    assert abs(steps[0].repaired_s - repaired(cluster, *steps[0].nics)) < steps[0].repaired_s / 10**5


def test_a_rail_that_lives_somewhere_is_repaired_nic_by_nic() -> None:
    """One NIC of a rail alone has nobody to talk to; a second one has."""
    cluster = hurt(RAILS, "server[0-2]/nic0")
    assert repair_together(cluster, N) == ()
    assert all(repair.saved_s > 0 for repair in repair_first(cluster, N))


def test_two_dead_rails_are_two_steps_and_savings_add_up() -> None:
    cluster = hurt(RAILS, "server*/nic[1-2]")
    steps = repair_together(cluster, N)
    assert [{nic.partition("/")[2] for nic in step.nics} for step in steps] == [{"nic1"}, {"nic2"}]
    # 2 of 4 NICs everywhere take twice as long as fault-free.
    whole = float(repaired(cluster.fault_free))
    assert abs(float(sum(step.saved_s for step in steps)) - whole) < 1e-5 * whole
    assert abs(float(steps[-1].repaired_s) - whole) < 1e-5 * whole


def test_a_slower_server_comes_before_the_tie() -> None:
    cluster = hurt("uniform:servers=8,nics=8,rate=400Gb/s", "server1/nic[0-5]", "server2/nic[0-4]", "server3/nic[0-4]")
    steps = repair_together(cluster, N)
    assert steps[0].nics == ("server1/nic0",)
    assert steps[1].nics == ("server1/nic1", "server2/nic0", "server3/nic0")


def test_nothing_together_where_each_repair_helps() -> None:
    assert repair_together(hurt(RAILS.replace("rails", "flat"), "server0/nic0", "server1/nic0"), N) == ()
    assert repair_together(hurt(RAILS), N) == ()


def call(*args: str) -> Result:
    return CliRunner().invoke(main, ["bound", *args, "--repair-first"])


def test_the_command_tells_what_to_repair_together() -> None:
    shown = call(RAILS, "--fail", "server*/nic0").stdout.splitlines()
    table = shown[shown.index("repair together, step by step") + 2 :]
    assert table == ["1  nic0 of server0, server1, server2, server3  8.053 ms             2.684 ms"]
    value: dict[str, Any] = json.loads(call(RAILS, "--fail", "server*/nic0", "--json").stdout)
    assert [row["saved_s"] for row in value["repair_first"]] == [0.0] * 4
    (step,) = value["repair_together"]
    assert step["nics"] == [f"server{s}/nic0" for s in range(4)]
    assert abs(step["saved_s"] - (value["bound_s"] - value["fault_free_s"])) < 1e-5 * value["bound_s"]


def test_the_command_says_nothing_of_it_where_each_repair_helps() -> None:
    asked = ("uniform:servers=4,nics=4,rate=400Gb/s", "--fail", "server1/nic0")
    assert "repair together" not in call(*asked).stdout
    assert json.loads(call(*asked, "--json").stdout)["repair_together"] == []


def test_many_servers_are_counted() -> None:
    shown = call(RAILS.replace("servers=4", "servers=6"), "--fail", "server*/nic0").stdout
    assert "nic0 of 6 servers (server0, server1, server2, ..., server5)" in shown
