"""Bounds' files forged with care: every number follows from the others, but something is not proved."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given

from optcc.errors import CertificateError
from optcc.plans.plan import Plan
from optcc.theory import bound_file as files
from optcc.theory import bound_with_costs, check_bound, lower_bound, program_bound
from optcc.values.bound import Bound, Certificate, ProgramCertificate
from optcc.values.cluster import Cluster, Fabric, Nic, Server
from tests.bound_check_alone import by_stranger
from tests.conftest import clusters
from tests.effort import examples
from tests.rail_clusters import N, networks, on_rails, solved


def written(cluster: Cluster, bound: Bound) -> str:
    collective = getattr(bound.certificate, "collective", "allreduce")
    found = bound_with_costs(cluster, bound, Fraction(5, 10**6), Fraction(1, 10**6), collective)
    return json.dumps(files.bound_file(cluster, found))


def a_bound(collective: str = "allreduce") -> tuple[Cluster, Bound, ProgramCertificate]:
    cluster = on_rails([[2, 2], [2, 2], [2, 2]], spine=Fraction(2)).degrade("server0/nic0", Fraction(1, 2))
    bound = program_bound(cluster, N, collective)
    assert isinstance(bound.certificate, ProgramCertificate)
    return cluster, bound, bound.certificate


def weaker(cert: ProgramCertificate) -> ProgramCertificate:
    """A dual that holds, at twice the price."""
    return replace(cert, rate=cert.rate * 2, resource_prices=tuple(2 * p for p in cert.resource_prices),
                   prices=tuple(replace(p, gain=2 * p.gain) for p in cert.prices))  # fmt: skip


def less_reached(cert: ProgramCertificate) -> ProgramCertificate:
    """A primal that holds, at half the unit."""
    assert cert.primal is not None
    return replace(cert, reached=cert.reached / 2, primal=replace(cert.primal, unit=cert.primal.unit / 2))


@pytest.mark.parametrize("change", [weaker, less_reached])
@pytest.mark.parametrize("part", ["certificate", "fault_free"])
def test_a_proof_of_less_is_refused(change: Callable[[ProgramCertificate], ProgramCertificate], part: str) -> None:
    """A weak fault-free bound would make the overhead larger, a weak bound the time smaller."""
    cluster, bound, cert = a_bound()
    check_bound(cluster, bound)
    assert bound.fault_free is not None
    wrong = change(cert if part == "certificate" else bound.fault_free)
    false = replace(bound, **{part: wrong})
    false = replace(false, seconds=false.certificate.seconds)
    if part == "fault_free":
        false = replace(false, fault_free_s=wrong.seconds)
    with pytest.raises(CertificateError, match="the gap between"):
        check_bound(cluster, false)
    with pytest.raises(CertificateError, match="the gap between"):
        files.check_bound_file(written(cluster, false))


def test_a_smaller_term_of_the_closed_form_is_refused() -> None:
    cluster = Cluster.uniform(servers=4, nics=2, rate=1000).degrade("server1/nic0")
    bound = lower_bound(cluster, N)
    smaller = Certificate("cut", "out", (0,), N, Fraction(2000))
    false = replace(bound, certificate=smaller, seconds=smaller.seconds)
    with pytest.raises(CertificateError, match="the closed form says"):
        check_bound(cluster, false)
    with pytest.raises(CertificateError, match="the fault-free bound is"):
        check_bound(cluster, replace(bound, fault_free_s=Fraction(N, 2000)))


def test_a_gpu_that_also_sends_over_nvlink_has_no_cut_of_its_nics() -> None:
    cluster = replace(Cluster.uniform(servers=2, nics=2, rate=1000, nvlink_rate=9000), gpu_ranks=True)
    cut = Certificate("cut", "out", (0,), N, Fraction(1000))
    with pytest.raises(CertificateError, match="a closed form is for servers"):
        check_bound(cluster, Bound(N, cut.seconds, cut.seconds, "server0", cut))


@pytest.mark.parametrize("travelled", [False, True])
def test_every_field_of_a_bound_is_checked(travelled: bool) -> None:
    """`travelled`: as a plan file carries it, without what proves some of them."""
    plan = Plan.from_bytes(a_plan().to_bytes()) if travelled else a_plan()
    bound, cert = plan.bound, plan.bound.certificate
    assert isinstance(cert, ProgramCertificate)
    check_bound(plan.cluster, bound)
    first = cert.prices[0]
    for false, why in (
        (replace(bound, fault_free_s=bound.fault_free_s * Fraction(9, 10)), "fault-free bound"),
        (replace(bound, bottleneck="the weather"), "the bottleneck is 'the weather'"),
        (replace(bound, seconds=bound.seconds * 2), "the bound is"),
        (replace(bound, nbytes=bound.nbytes * 2), "the bound is"),
        (replace(bound, certificate=replace(cert, reached=cert.reached * Fraction(9, 10))), "reache|the gap"),
        (replace(bound, certificate=replace(cert, reached=cert.reached * Fraction(11, 10))), "reache"),
        (replace(bound, certificate=replace(cert, prices=cert.prices[1:])), "the prices list"),
        (replace(bound, certificate=replace(cert, prices=(replace(first, share=Fraction(1)),))), "the prices list"),
        (replace(bound, certificate=replace(cert, prices=(replace(first, what="?"), *cert.prices[1:]))), "the prices"),
    ):
        with pytest.raises(CertificateError, match=why):
            check_bound(plan.cluster, false)


def a_plan() -> Plan:
    import optcc

    return optcc.plan(on_rails([[10, 20], [20, 20], [20, 10]]).degrade("server1/nic1"), 10**6)


def test_numbers_that_come_round_in_64_bits_are_refused() -> None:
    cluster, bound, cert = a_bound()
    assert cert.primal is not None
    primal = replace(cert.primal, broadcast=tuple(c + 2**61 for c in cert.primal.broadcast))
    with pytest.raises(CertificateError, match="too large"):
        check_bound(cluster, replace(bound, certificate=replace(cert, primal=primal)))


# ---- of another topology, without optcc ------------------------------------------------------------------------------


def gpu_ranks(nvlink: int, count: int = 2) -> Cluster:
    nics = tuple(Nic(f"nic{i}", Fraction(2), Fraction(2), rail=i, gpu=i) for i in range(2))
    servers = tuple(Server(f"server{s}", nics, 2, Fraction(nvlink)) for s in range(count))
    return Cluster(servers, gpu_ranks=True)


def in_pods(*pods: str, factor: Fraction = Fraction(2)) -> Cluster:
    nic = Nic("nic0", Fraction(2), Fraction(2), rail=0)
    servers = tuple(Server(f"server{s}", (nic,), pod=pod) for s, pod in enumerate(pods))
    return Cluster(servers, fabric=Fabric(rails=True, pod_oversubscription=factor))


MEETING = [[1, 2], [2, 2], [2, 1]]


@pytest.mark.parametrize(
    ("right", "other", "why"),
    [
        (on_rails(MEETING), on_rails([[1, 2], [2, 2], [2, 2]]), "another rate than its NICs'"),
        (on_rails(MEETING), on_rails([[1, 2], [2, 2], [2, 1], [2, 2]]), "not all ranks"),
        (on_rails(MEETING), on_rails([[1, 2], [2, 2], [2, 1]], spine=Fraction(2)), "another rate than the topology's"),
        (
            on_rails(MEETING, spine=Fraction(2)),
            on_rails(MEETING, spine=Fraction(1)),
            "another rate than the topology's",
        ),
        (in_pods(*"aabb"), in_pods(*"aabb", factor=Fraction(1)), "another rate than the topology's"),
        (in_pods(*"aabb"), in_pods(*"aaaa"), "equal ranks in two pods"),
        (gpu_ranks(3), gpu_ranks(9), "the rate of no server"),
        (gpu_ranks(3), gpu_ranks(3, 3), "not all ranks"),
    ],
)
def test_the_example_holds_the_network_to_the_topology(right: Cluster, other: Cluster, why: str) -> None:
    """The bound of another network, whole, in the file of a topology that is slower, or has other ranks."""
    assert by_stranger(written(other, program_bound(other, N))) is None
    mine, theirs = (json.loads(written(cluster, program_bound(cluster, N))) for cluster in (right, other))
    assert by_stranger(json.dumps(mine)) is None
    assert why in (by_stranger(json.dumps({**theirs, "topology": mine["topology"]})) or "")


@pytest.mark.parametrize("part", ["pairs", "uses", "no spine"])
def test_the_example_misses_no_pair_and_no_use(part: str) -> None:
    """Fewer pairs to pay for; a way that no link limits; and the same where the topology has no spine at all."""
    cluster, bound, _ = a_bound()
    content = json.loads(written(cluster, bound))
    network = content["certificate"]["network"]
    if part == "pairs":
        for column in network["views"][0]["pairs"].values():
            column.pop()
    else:
        links = {k for k, r in enumerate(network["resources"]) if "spine" in r["what"]}
        kept = [i for i, resource in enumerate(network["uses"]["resource"]) if resource not in links]
        network["uses"] = {name: [column[i] for i in kept] for name, column in network["uses"].items()}
        if part == "no spine":
            content["topology"]["fabric"]["spine"] = None
            where = {k: i for i, k in enumerate(k for k in range(len(network["resources"])) if k not in links)}
            network["resources"] = [r for r in network["resources"] if "spine" not in r["what"]]
            network["uses"]["resource"] = [where[k] for k in network["uses"]["resource"]]
    why = {"pairs": "not all pairs", "uses": "uses too little", "no spine": "rails that do not meet"}[part]
    assert why in (by_stranger(json.dumps(content)) or "")


# ---- on random clusters ---------------------------------------------------------------------------------------------


@examples(40)
@given(cluster=networks())
def test_files_of_random_networks(cluster: Cluster) -> None:
    _passes(cluster, solved(cluster))


@examples(40)
@given(cluster=clusters(symmetric=False))
def test_files_of_random_clusters_on_one_fabric(cluster: Cluster) -> None:
    _passes(cluster, lower_bound(cluster, N))


@pytest.mark.parametrize("collective", ["allgather", "reduce-scatter", "reduce-scatter+allgather"])
def test_files_of_other_collectives(collective: str) -> None:
    cluster, bound, _ = a_bound(collective)
    _passes(cluster, bound)


def _passes(cluster: Cluster, bound: Bound) -> None:
    text = written(cluster, bound)
    again, found = files.check_bound_file(text)
    assert (again, found.bound) == (cluster, bound)
    assert by_stranger(text) is None
