"""Every contribution exactly once: sets of contributors do not tell, counts, Coq and the verifier do."""

from __future__ import annotations

import ast
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import optcc
from optcc.errors import VerifyError
from optcc.schedule import Lane, Port, Route, Schedule
from tests.proof_scripts import script
from tests.test_proof_cases import Arc, hub_arrows, once, times_held
from tests.test_proofs import ROOT

Transfers = list[tuple[int, int, bool]]  # from, to, adds

DOUBLE_COUNT: list[Arc] = [(0, 1), (0, 2), (1, 2), (2, 0), (2, 1)]
"""If all of them add, rank 2 adds the contribution of rank 0 twice."""


def in_all_ways(arrows: list[Arc]) -> list[Transfers]:
    """Each transfer adds, or it copies."""
    ways = product((True, False), repeat=len(arrows))
    return [[(u, v, adds) for (u, v), adds in zip(arrows, way, strict=True)] for way in ways]


def everybody_is_reached(ranks: int, transfers: Transfers) -> bool:
    """AllReduce in the sense of sets of contributors, which lower bounds use."""
    known = [{r} for r in range(ranks)]
    for u, v, _ in transfers:
        known[v] |= known[u]
    return all(len(contributors) == ranks for contributors in known)


def one_element(ranks: int, transfers: Transfers) -> Schedule:
    """A schedule of one element. Each transfer waits for all earlier transfers into its source rank."""
    rows = len(transfers)
    deps = [[i for i in range(row) if transfers[i][1] == transfers[row][0]] for row in range(rows)]
    return Schedule(
        ranks=ranks,
        nbytes=8,
        ports=tuple(Port(f"port{r}", r, 1.0, 1.0) for r in range(ranks)),
        routes=tuple(Route(u, v, (Lane(u, v, Fraction(1)),)) for u, v, _ in transfers),
        route=np.arange(rows, dtype=np.int32),
        offset=np.zeros(rows, np.int64),
        length=np.full(rows, 8, np.int64),
        reduce=np.array([adds for *_, adds in transfers]),
        stage=np.ones(rows, np.uint8),
        segment=np.zeros(rows, np.int32),
        dep_ptr=np.cumsum([0, *map(len, deps)]).astype(np.int64),
        dep_idx=np.array([i for waits in deps for i in waits], np.int64),
    )


def is_verified(ranks: int, transfers: Transfers) -> bool:
    try:
        optcc.verify(one_element(ranks, transfers))
    except VerifyError:
        return False
    return True


def test_a_contribution_added_twice_is_refused() -> None:
    for transfers in in_all_ways(DOUBLE_COUNT):
        assert everybody_is_reached(3, transfers)
        assert times_held(3, transfers) != once(3)
        assert not is_verified(3, transfers)
    everything_adds = in_all_ways(DOUBLE_COUNT)[0]
    assert times_held(3, everything_adds)[2] == [2, 1, 1]
    with pytest.raises(VerifyError, match="adds the contribution of rank 0 a second time"):
        optcc.verify(one_element(3, everything_adds))


def test_what_the_verifier_accepts_is_counted_once() -> None:
    for gather, spread in product(range(3), repeat=2):
        arrows = hub_arrows(3, gather, spread)
        accepted = [transfers for transfers in in_all_ways(arrows) if is_verified(3, transfers)]
        assert accepted == [[(u, v, v == gather) for u, v in arrows]]
        assert times_held(3, accepted[0]) == once(3)


@pytest.mark.coq
def test_coq_counts_as_the_tests_do(tmp_path: Path) -> None:
    """The definitions of Model.v, computed: on the double count, and on an element of nested rings of four ranks."""
    (tmp_path / "Model.v").write_text((ROOT / "proofs/coq/Model.v").read_text())
    (tmp_path / "Counts.v").write_text(
        """
From Coq Require Import List.
Import ListNotations.
From optcc Require Import Model.
Definition all {A} (P : nat) (f : nat -> nat -> A) :=
  map (fun r => map (f r) (seq 0 P)) (seq 0 P).
Definition bit (b : bool) := if b then 1 else 0.
Definition counted P s :=
  (map (fun t => [src t; dst t; bit (adds t)]) s, all P (times_held s 0), all P (fun r c => bit (final s 0 r c))).
Definition adding := map (fun t => Transfer (src t) (dst t) (elt t) true).
Set Printing Width 10000.
Compute counted 3 (double_count true true true true true).
Compute counted 3 (double_count false true true false false).
Compute counted 4 (nested_rings 4 [(3, 1)]).
Compute counted 4 (adding (nested_rings 4 [(3, 1)])).
"""
    )
    check = script("coq/check")
    for name in ("Model.v", "Counts.v"):
        result = check.run(tmp_path, "coqc", "-q", "-Q", ".", "optcc", name)
        assert result.returncode == 0, result.stderr
    lines = [line for line in result.stdout.splitlines() if line.strip().startswith("=")]
    seen = []
    for line in lines:
        rows, counts, reached = ast.literal_eval(line.strip(" =").replace(";", ","))
        transfers = [(u, v, adds == 1) for u, v, adds in rows]
        ranks = len(counts)
        assert counts == times_held(ranks, transfers)
        assert reached == once(ranks)  # sets of contributors object to none of them
        seen.append((counts == once(ranks), is_verified(ranks, transfers)))
    assert seen == [(False, False), (False, False), (True, True), (False, False)]
