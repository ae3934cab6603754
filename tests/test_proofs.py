"""The ledger of proofs/README.md is held to the code and to the files it names; small cases of what it states."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import permutations, product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from optcc.theory.bounds import lower_bound
from optcc.theory.partition import partitions
from optcc.theory.symbolic import results
from optcc.theory.ways import build_network
from optcc.values.bound import ProgramCertificate
from optcc.values.cluster import Cluster, Fabric
from tests.conftest import clusters
from tests.effort import examples
from tests.rail_clusters import networks, on_rails, solved

ROOT = Path(__file__).resolve().parent.parent
LEDGER = (ROOT / "proofs/README.md").read_text(encoding="utf-8")
HEADLINES = ROOT / "proofs/coq/Headlines.v"
CONTROLS = ROOT / "tests/coding_controls.v"


def script(name: str) -> ModuleType:
    """A script of proofs/ as a module."""
    spec = importlib.util.spec_from_file_location(Path(name).stem, ROOT / "proofs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ledger = script("ledger")


def named_in_code() -> dict[str, set[str]]:
    """Where -> the proof ids that docstrings, documents and derivations name there."""
    return {**ledger.named_in_code(), **{f"result {result.id}": {result.proof_id} for result in results()}}


def test_the_ledger_names_only_what_exists() -> None:
    assert ledger.problems(LEDGER) == []


def test_the_code_names_only_ids_of_the_ledger() -> None:
    named = named_in_code()
    assert ledger.unknown(LEDGER, named) == []
    # The scan sees something: the closed form, the program, the certificates, a document.
    assert {"cut", "traffic", "nested-rings"} <= named["bounds.py"]
    assert {"cut", "traffic", "linear-program"} <= named["bound.py"]
    assert "bidirected" in named["partition.py"]  # with a line break before it
    assert "cut" in named["bounds.md"]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("| traffic |", "| cut |", "cut: twice"),
        ("(written/cut.md)", "(written/cuts.md)", "cut: no page [cut](written/cuts.md)"),
        ("[cut](written/cut.md)", "later", "cut: no page later"),
        ("`cut_sends`", "`cut_send`", "cut: no theorem cut_send"),
        ("`switch_above`", "", "theorem switch_above is in no row"),
        ("search/tree_pairs.py", "search/tree_pair.py", "tree-pairs: no script search/tree_pair.py"),
        ("::test_shares_reach_the_bound", "::test_shares", "nested-rings: no test tests/test_bounds.py::test_shares"),
        ("::test_shares_reach_the_bound", "", "nested-rings: no test tests/test_bounds.py"),
        ("tests/test_splits.py::", "tests/test_split.py::", "nested-rings: no file tests/test_split.py"),
        ("checked for", "verified for", "tree-pairs: unknown status verified for `P <= 6`"),
        ("| conjectured |", "| sure |", "k-segments-optcc: unknown status sure"),
        (
            "`tests/test_proofs.py::test_every_schedule_of_four_ranks_contains_a_tree_pair`",
            "none",
            "tree-pairs: no numeric test",
        ),
    ],
)
def test_a_wrong_ledger_is_noticed(old: str, new: str, complaint: str) -> None:
    assert old in LEDGER
    assert complaint in ledger.problems(LEDGER.replace(old, new, 1))


def test_a_page_that_is_empty_or_stray_is_noticed(tmp_path: Path) -> None:
    for part in ("proofs", "tests", "docs"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    assert ledger.problems(LEDGER, tmp_path) == []
    (tmp_path / "proofs/written/cut.md").write_text("# cut\n\nSee [there](nowhere.md).\n")
    (tmp_path / "proofs/written/more.md").write_text("# more\n")
    coding, heart = tmp_path / "proofs/written/coding.md", tmp_path / "proofs/coq/Coding.v"
    coding.write_text(coding.read_text().replace("[`one_case`]", "[`two_cases`]"))
    heart.write_text(heart.read_text().replace("../written/coding.md", "../written/codes.md"))
    assert ledger.problems(LEDGER, tmp_path) == [
        "cut: nothing on written/cut.md",
        "page coding.md: no two_cases in ../coq/Coding.v",
        "page cut.md links to nowhere.md, which does not exist",
        "page more.md is in no row",
        "Coding.v names written/codes.md, which does not exist",
    ]


@pytest.mark.parametrize("name", ["cut", "bidirected", "rivals"])
def test_an_id_without_a_row_is_noticed(name: str) -> None:
    without = "\n".join(line for line in LEDGER.splitlines() if not line.startswith(f"| {name} |"))
    assert any(complaint.endswith(f": no id {name}") for complaint in ledger.unknown(without, named_in_code()))


def test_mentions_are_found_in_prose() -> None:
    prose = "Proofs: ids cut and\ntraffic. Proof id\n``one-over-p``; an idle id. Its proof_id says more (id `rivals`)."
    assert ledger.mentions(prose) == {"cut", "traffic", "one-over-p", "rivals"}


def check_proofs(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "proofs/coq/check.py"), str(folder)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, **environment}, check=False
    )


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All proofs, compiled from scratch."""
    build = tmp_path_factory.mktemp("coq")
    script("coq/check").compile_all(ROOT / "proofs/coq", build)
    return build


@pytest.mark.long
@pytest.mark.coq
@pytest.mark.timeout(600)
def test_coq_accepts_every_headline_without_assumptions(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check = script("coq/check")
    check.audit(compiled)
    stated = re.findall(r"^Theorem (\w+)", (ROOT / "proofs/coq/Headlines.v").read_text(), re.M)
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert sorted(printed) == sorted([name, *check.CLOSED.split()] for name in stated)


@pytest.mark.long
@pytest.mark.coq
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("source", "old", "new", "complaint"),
    [
        (CONTROLS, "", "", None),
        # The protocol that is wrong for one input is not accepted, nor is the right one refused.
        (CONTROLS, "claim : sums bit 3 (gather total)", "claim : sums bit 3 (gather wrong)", "claim"),
        (CONTROLS, "refused : ~ sums bit 3 (gather wrong)", "refused : ~ sums bit 3 (gather total)", "no subterm"),
        # One more than 2(P-1): by the proof it does not follow, and the controls show that it is false.
        (HEADLINES, "(order G ^ (2 * (P - 1)) <= prod", "(order G ^ (2 * (P - 1) + 1) <= prod", "alphabets_sum"),
        (CONTROLS, "(2 * (3 - 1) + 1) <= prod", "(2 * (3 - 1)) <= prod", "find witness"),
    ],
)
def test_coq_refuses_a_protocol_that_fails_and_a_bound_that_is_too_high(
    compiled: Path, source: Path, old: str, new: str, complaint: str | None
) -> None:
    text = source.read_text()
    assert old in text
    (compiled / "Control.v").write_text(text.replace(old, new))
    result = script("coq/check").run(compiled, "coqc", "-q", "-Q", ".", "optcc", "Control.v")
    assert (result.returncode == 0) is (complaint is None), result.stderr
    assert complaint is None or complaint in result.stderr


@pytest.mark.coq
@pytest.mark.parametrize("end", ["Qed", "Admitted"])
def test_an_admitted_lemma_is_noticed(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sources").mkdir()
    for name, text in {
        "_CoqProject": "Below.v Headlines.v",
        # The planted fault: a proof that is only claimed, in a file that the headlines rest on.
        "Below.v": f"Lemma sums n : n + 0 = n. Proof. induction n; simpl; auto. {end}.",
        "Headlines.v": "From optcc Require Import Below.\n"
        "Theorem claimed n : n + 0 = n.\nProof. exact (sums n). Qed.\n"
        "Theorem proved (n : nat) : n = n.\nProof. reflexivity. Qed.\n",
    }.items():
        (tmp_path / "sources" / name).write_text(text)
    check = script("coq/check")
    monkeypatch.setattr(check, "HEADLINES", ("claimed", "proved"))
    check.compile_all(tmp_path / "sources", tmp_path)
    if end == "Qed":
        check.audit(tmp_path)
        monkeypatch.setattr(sys, "argv", ["check.py", str(tmp_path / "sources")])
        assert check.main() == 0
        assert "2 headlines proved without assumptions" in capsys.readouterr().out
        return
    with pytest.raises(check.CheckError) as complaint:
        check.audit(tmp_path)
    assert "headline claimed is not closed" in str(complaint.value)
    assert "headline proved" not in str(complaint.value)


def test_the_check_says_what_is_missing(tmp_path: Path) -> None:
    result = check_proofs(ROOT / "proofs/coq", PATH=str(tmp_path))
    assert result.returncode == 2
    assert "coqc is not installed; apt-get install" in result.stderr


Arc = tuple[int, int]


def cheapest(ranks: int, cost: Callable[[Arc], bool], goal: Callable[[int], bool]) -> int:
    """The least number of transfers with `cost` by which one element reaches a state of knowledge with `goal`.

    Bit ranks * r + c of a state says that rank r knows the contribution of rank c. All schedules are tried.
    """
    arcs = [(u, v, int(cost((u, v)))) for u, v in permutations(range(ranks), 2)]
    start = sum(1 << (ranks * r + r) for r in range(ranks))
    least, queue = {start: 0}, deque([start])
    while queue:
        state = queue.popleft()
        if goal(state):
            return least[state]
        for u, v, price in arcs:
            after = state | (state >> (ranks * u) & (1 << ranks) - 1) << (ranks * v)
            if least[state] + price < least.get(after, 99):
                least[after] = least[state] + price
                (queue.append if price else queue.appendleft)(after)
    raise AssertionError("the goal is out of reach")


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_fewest_transfers_of_one_element(ranks: int) -> None:
    """All schedules on up to four ranks: traffic for one rank a block, cut for one way of one rank."""

    def complete(state: int) -> bool:
        return state == (1 << ranks * ranks) - 1

    for blocks in partitions(range(ranks)):
        block = {rank: i for i, members in enumerate(blocks) for rank in members}
        crossing = cheapest(ranks, lambda arc, of=block: of[arc[0]] != of[arc[1]], complete)  # type: ignore[misc]
        assert crossing == 2 * (len(blocks) - 1)
    for way in (0, 1):
        assert cheapest(ranks, lambda arc, w=way: arc[w] == 0, complete) == 1  # type: ignore[misc]
    # The search finds cheaper ones where the task is smaller: one rank alone gets to know everything.
    assert cheapest(ranks, lambda _: True, lambda state: state >> ranks * (ranks - 1) == (1 << ranks) - 1) == ranks - 1


def hub_arrows(ranks: int, gather: int, spread: int) -> list[Arc]:
    """One element by two hubs: everybody to `gather`, the sum to `spread`, from there to whoever lacks it."""
    up = [(r, gather) for r in range(ranks) if r != gather]
    over = [(gather, spread)] if gather != spread else []
    return up + over + [(spread, r) for r in range(ranks) if r not in (gather, spread)]


def hub_parts(rates: Sequence[Fraction], per_byte: Fraction) -> list[Fraction]:
    """Which part of the data each rank is a hub for, out or in (proofs/written/attained.md, two ranks or more)."""
    p = len(rates)
    spare = [rate * per_byte - 1 for rate in rates]
    return [part / sum(spare) for part in spare] if p > 2 else [Fraction(1), Fraction(0)]


def hub_time(rates: Sequence[Fraction], parts: Sequence[Fraction]) -> Fraction:
    """Seconds per byte of the slowest port one way."""
    return max((1 + (len(rates) - 2) * part) / rate for rate, part in zip(rates, parts, strict=True))


def times_held(ranks: int, transfers: Iterable[tuple[int, int, bool]]) -> list[list[int]]:
    """[r][c]: how often rank c's contribution is in what rank r holds of one element in the end.

    A transfer (u, v, adds) adds what u holds to what v holds, or copies it over that.
    """
    held = [[int(r == c) for c in range(ranks)] for r in range(ranks)]
    for u, v, adds in transfers:
        held[v] = [mine * adds + new for mine, new in zip(held[v], held[u], strict=True)]
    return held


def once(ranks: int) -> list[list[int]]:
    """What an AllReduce leaves: everybody holds every contribution exactly once."""
    return [[1] * ranks] * ranks


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_two_hub_schedules_are_allreduces_with_these_loads(ranks: int) -> None:
    for gather, spread in product(range(ranks), repeat=2):
        arrows = hub_arrows(ranks, gather, spread)
        assert times_held(ranks, [(u, v, v == gather) for u, v in arrows]) == once(ranks)
        assert times_held(ranks, [(u, v, True) for u, v in arrows]) != once(ranks)  # the sum must be copied
        for r in range(ranks):
            assert sum(u == r for u, _ in arrows) == 1 + (ranks - 2) * (r == spread)
            assert sum(v == r for _, v in arrows) == 1 + (ranks - 2) * (r == gather)


@given(cluster=clusters(min_ranks=2, symmetric=False))
def test_two_hubs_reach_the_closed_form_for_any_rates(cluster: Cluster) -> None:
    least = lower_bound(cluster, 1).seconds
    ways = [r.out_rate for r in cluster.ranks], [r.in_rate for r in cluster.ranks]
    parts = [hub_parts(rates, least) for rates in ways]
    for part in parts:
        assert sum(part) == 1
        assert min(part) >= 0
    assert max(map(hub_time, ways, parts)) == least


def test_equal_hubs_do_not_reach_it() -> None:
    rates = [Fraction(1), Fraction(2), Fraction(2)]
    assert hub_time(rates, hub_parts(rates, Fraction(1))) == 1
    assert hub_time(rates, [Fraction(1, 3)] * 3) == Fraction(4, 3)


def out_trees(ranks: int, root: int) -> Iterator[list[Arc]]:
    """Every spanning tree of arcs away from `root`."""
    others = [r for r in range(ranks) if r != root]
    for parents in product(range(ranks), repeat=len(others)):
        tree = dict(zip(others, parents, strict=True))
        if all(root in _ancestors(tree, r) for r in others):
            yield [(parent, r) for r, parent in tree.items()]


def _ancestors(tree: dict[int, int], rank: int) -> set[int]:
    found = set[int]()
    while rank in tree and rank not in found:
        found.add(rank)
        rank = tree[rank]
    return found | {rank}


def packing_rate(cluster: Cluster) -> float:
    """Bytes per second of the best packing of tree pairs: a linear program over pairs and ways, without cuts."""
    network = build_network(cluster, merge=False)
    ranks = len(network.rank_types)
    arcs = list(permutations(range(ranks), 2))
    pairs = []
    for root in range(ranks):
        trees = list(out_trees(ranks, root))
        pairs += [[*((v, u) for u, v in up), *down] for up, down in product(trees, repeat=2)]
    scale = float(max(r.rate for r in network.resources))
    ways = [(network.orbits[o].x, network.orbits[o].y) for o in network.way_orbit]
    fits = np.array([[float(pair.count(arc)) for pair in pairs] + [-float(way == arc) for way in ways] for arc in arcs])
    use = np.hstack([np.zeros((len(network.resources), len(pairs))), network.use.toarray().astype(float)])
    limits = [0.0] * len(arcs) + [float(r.rate) / scale for r in network.resources]
    cost = [-1.0] * len(pairs) + [0.0] * len(ways)
    best = linprog(cost, A_ub=np.vstack([fits, use]), b_ub=limits, method="highs")
    assert best.status == 0, best.message
    return float(-(best.fun or 0.0)) * scale


@examples(60)
@given(cluster=networks(max_servers=4, gpus=False))
def test_program_is_the_best_packing_of_tree_pairs(cluster: Cluster) -> None:
    certificate = solved(cluster).certificate
    assert isinstance(certificate, ProgramCertificate)
    assert packing_rate(cluster) == pytest.approx(float(certificate.rate), rel=2e-6)


def test_packing_knows_all_trees_and_the_rails() -> None:
    assert [sum(1 for _ in out_trees(ranks, 0)) for ranks in (2, 3, 4)] == [1, 3, 16]
    railed = on_rails([[0, 1], [0, 1], [1, 1]])
    assert packing_rate(railed) == pytest.approx(3 / 4)
    assert packing_rate(replace(railed, fabric=Fabric())) == pytest.approx(1)


def test_every_schedule_of_four_ranks_contains_a_tree_pair() -> None:
    tree_pairs = script("search/tree_pairs")
    assert [tree_pairs.counterexample(ranks) for ranks in (2, 3, 4)] == [None] * 3


def test_the_search_for_tree_pairs_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were rank 0 the only root allowed, some schedule would lack a pair, and the search finds it."""
    tree_pairs = script("search/tree_pairs")
    monkeypatch.setattr(tree_pairs.Ranks, "has_tree_pair", lambda self, used: self._pair(used, 0, 1))
    found = tree_pairs.counterexample(4)
    assert found is not None
    assert len(found) >= 6


def test_linear_codes_save_nothing_in_small_cases() -> None:
    """Three ranks and two elements, four and two: nothing with less than 2(P-1)n messages; with as many, something."""
    fewest = script("search/coding").fewest
    assert fewest(3, 2, extra=1) is None
    assert fewest(3, 2, extra=2) == 8
    assert fewest(4, 2, extra=3) is None
    assert fewest(4, 1, extra=2) == 6


@st.composite
def failures(draw: st.DrawFn) -> tuple[int, Fraction]:
    return draw(st.integers(3, 40)), Fraction(draw(st.integers(1, 99)), 100)


def r2cc_time(ranks: int, lost: Fraction, healthy_part: Fraction) -> Fraction:
    """R2CC-AllReduce over T0 for any split, chunks without end: both rings side by side, then the second stage."""
    everybody = Fraction(2 * (ranks - 1), ranks) * (1 - healthy_part) / (1 - lost)
    healthy = Fraction(2 * (ranks - 2), ranks - 1) * healthy_part / lost
    return (max(everybody, healthy) + healthy_part / (1 - lost)) / Fraction(2 * (ranks - 1), ranks)


@given(failures(), st.fractions(0, 1, max_denominator=1000))
def test_another_split_hardly_helps_r2cc(failure: tuple[int, Fraction], part: Fraction) -> None:
    ranks, lost = failure
    best = r2cc_time(ranks, lost, lost * (ranks - 1) ** 2 / (ranks * (ranks - 2) + lost))
    assert best <= r2cc_time(ranks, lost, part)
    assert best < r2cc_time(ranks, lost, lost) < best + lost / (2 * ranks * (ranks - 1))
    assert r2cc_time(ranks, lost, lost) == 1 + lost * ranks / (2 * (ranks - 1) * (1 - lost))
