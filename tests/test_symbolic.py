"""Every derived formula against the cases of symbolic_cases.py; registry, printing, and one cluster's formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import sympy as sp
from hypothesis import given
from hypothesis import strategies as st

from optcc.errors import InfeasibleError
from optcc.theory.bounds import lower_bound
from optcc.theory.derivations import (
    TABLE,
    B,
    DerivationError,
    K,
    L,
    P,
    Result,
    X,
    check_finite,
    describe,
    ell,
    exact,
    k,
    m,
    n,
    prove_nonnegative,
    require_zero,
    results,
    symbolic_bound,
    tidy,
    unit_rate,
)
from optcc.values.cluster import Cluster, Nic, Server
from tests.effort import examples
from tests.rival_ratios import compare
from tests.symbolic_cases import CASES, Case, check, reseed

PROOF_IDS = {
    "cut",
    "traffic",
    "partition",
    "attained",
    "nested-rings",
    "single-straggler",
    "one-over-p",
    "bidirected",
    "k-segments",
    "rivals",
    "collectives",
}


@pytest.fixture(autouse=True)
def _same_cases() -> None:
    reseed()


def formula(name: str) -> Any:
    return named(name).expression


def check_all(result: Result, cases: list[Case]) -> None:
    for case in cases:
        check(result, case)


def named(name: str) -> Result:
    (result,) = (result for result in results() if result.id == name)
    return result


# A slip of each kind that is easily made, and that the cases must see.
WRONG: dict[str, Callable[[], Any]] = {
    "cut": lambda: n * B,
    "traffic": lambda: formula("traffic") / 2,
    "partition": lambda: formula("partition").subs(n, n / 2),
    "closed-form": lambda: sp.Max(*formula("closed-form").args[1:]),
    "bidirected-three": lambda: sp.Max(*formula("bidirected-three").args[1:]),
    "single-straggler": lambda: P / (P - 1 + 1 / ell),
    "single-straggler-switch": lambda: sp.Integer(2),
    "several-stragglers": lambda: formula("single-straggler"),
    "several-stragglers-switch": lambda: formula("single-straggler-switch"),
    "limit-many-ranks": lambda: ell / 2,
    "limit-hard": lambda: sp.Rational(1, 2),
    "one-over-p": lambda: (1 - 1 / ell) / P,
    "one-over-p-lower": lambda: (1 - 1 / ell) / (P - 1),
    "half-rate": lambda: 1 / P,
    "hard-failure": lambda: ell / 2 - 1,
    "nested-ring-shares": lambda: (L(P - m + 1) - L(P - m)) * m / (P - 1),
    "two-patterns": lambda: 1 - formula("two-patterns"),
    "optimum-lost-share": lambda: P / (P - X),
    "r2cc-allreduce": lambda: sp.limit(formula("r2cc-allreduce"), K, sp.oo),
    "balance": lambda: 1 / X,
    "k-segments": lambda: 1 + 1 / (k + 1),
    "allgather-bound": lambda: formula("reduce-scatter-bound"),
    "broadcast-bound": lambda: formula("reduce-bound"),
    "equal-shards": lambda: ell - 1,
}


def test_every_result_has_a_case_a_known_proof_id_and_a_name_of_its_own() -> None:
    assert sorted(CASES) == sorted(result.id for result in results())
    assert {result.proof_id for result in results()} == PROOF_IDS


@pytest.mark.parametrize("name", sorted(CASES))
def test_formula_agrees_with_exact_arithmetic(name: str) -> None:
    check_all(named(name), [CASES[name]() for _ in range(8)])


@pytest.mark.parametrize("name", sorted(WRONG))
def test_planted_wrong_formula_is_caught(name: str) -> None:
    planted = replace(named(name), expression=WRONG[name]())
    cases = [CASES[name]() for _ in range(25)]
    with pytest.raises(AssertionError):
        check_all(planted, cases)


def test_remainder_of_one_over_p_is_of_second_order() -> None:
    """The two sides of the statement differ by at most (1-1/l)^2 / (P(P-1)), for every failure up to l_c."""
    width = formula("one-over-p") - formula("one-over-p-lower")
    assert sp.simplify(width - (1 - 1 / ell) ** 2 / (P * (P - 1))) == 0


@pytest.mark.parametrize("ranks", [3, 4, 5, 6])
def test_symbolic_shares_meet_every_load(ranks: int) -> None:
    assert len(check_finite(ranks)) == ranks


def test_schemes_at_eight_ranks_and_half_a_rank_lost() -> None:
    ratios = compare(8, Fraction(1, 2))
    assert {name: f"{float(ratio):.3f}" for name, ratio in ratios.items()} == {
        "optimum-lost-share": "1.143",
        "r2cc-allreduce": "1.571",
        "balance": "2.000",
        "hot-repair": "2.000",
    }


@given(
    st.lists(st.tuples(st.fractions(1, 50), st.fractions(1, 50)), min_size=1, max_size=9),
    st.integers(1, 10**12),
)
@examples(40)
def test_formula_of_a_cluster_equals_its_bound(rates: list[tuple[Fraction, Fraction]], nbytes: int) -> None:
    cluster = Cluster(tuple(Server(f"s{i}", (Nic("nic", *pair),)) for i, pair in enumerate(rates)))
    result, bound = symbolic_bound(cluster), lower_bound(cluster, nbytes)
    assert result.expression.subs({n: nbytes, B: exact(unit_rate(cluster))}) == exact(bound.seconds)
    assert bound.certificate.kind in (result.proof_id, "trivial")


def test_formula_of_a_degraded_cluster_names_the_straggler_and_its_overhead() -> None:
    cluster = Cluster.uniform(servers=8, nics=2, rate=Fraction(25 * 10**9)).degrade("server3/nic0")
    text = symbolic_bound(cluster).text()
    assert "B = 400Gb/s" in text
    assert "One straggler, server3" in text
    assert "(2, 13/7)" in text
    assert "8/7" in text
    assert symbolic_bound(cluster.fault_free).expression == 7 * n / (4 * B)


def test_cluster_without_a_way_out_has_no_formula() -> None:
    cluster = Cluster.uniform(servers=3, nics=1, rate=1).degrade("server1/nic0")
    with pytest.raises(InfeasibleError, match="server1"):
        symbolic_bound(cluster)


def test_every_symbol_is_described_once() -> None:
    assert len({row.symbol for row in TABLE}) == len(TABLE)
    for result in results():
        used = sp.Tuple(result.left, result.expression, *(step.expression for step in result.steps))
        assert used.free_symbols <= {row.symbol for row in describe(used)}, result.id


def test_text_and_latex_carry_every_part() -> None:
    for result in results():
        text, latex = result.text(), result.latex()
        assert f"proof: proofs/README.md, id {result.proof_id}" in text
        assert sp.latex(result.expression) in latex
        for step in result.steps:
            assert step.claim in text
        assert latex.count(r"\item") == len(result.steps)
        assert latex.count(r"\[") == latex.count(r"\]") == len(result.steps) + 1


def test_signs_are_proved_or_refused() -> None:
    assert prove_nonnegative(P - 3, {P: (3, sp.oo)}) == P - 3
    prove_nonnegative((ell - 1) * (2 - ell), {ell: (1, 2)})
    with pytest.raises(DerivationError, match="cannot show"):
        prove_nonnegative(P - 4, {P: (3, sp.oo)})
    with pytest.raises(DerivationError, match="cannot show"):
        prove_nonnegative(1 / (ell - 2), {ell: (1, 3)})
    with pytest.raises(DerivationError, match="first step"):
        require_zero(P - ell, "first step")


def test_tidy_changes_the_looks_only() -> None:
    messy = -X / (X - 1) + P / (1 - P * ell)
    assert sp.simplify(tidy(messy) - messy) == 0
    assert str(tidy(-1 / (X - 1))) == "1/(1 - X)"
