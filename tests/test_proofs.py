"""The ledger of proofs/README.md is held to the code and to the files it names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from optcc.theory.derivations import results
from tests.proof_scripts import script

ROOT = Path(__file__).resolve().parent.parent
LEDGER = (ROOT / "proofs/README.md").read_text(encoding="utf-8")
HEADLINES = ROOT / "proofs/coq/Headlines.v"
CONTROLS = ROOT / "tests/coding_controls.v"


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
    assert "bidirected" in named["bound_program.py"]
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
        ("tests/test_segments.py::", "tests/test_split.py::", "nested-rings: no file tests/test_split.py"),
        ("checked for", "verified for", "tree-pairs: unknown status verified for `P <= 6`"),
        ("| conjectured |", "| sure |", "k-segments-optcc: unknown status sure"),
        (
            "`tests/test_proof_cases.py::test_every_schedule_of_four_ranks_contains_a_tree_pair`",
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
        # A broadcast cut that asks for n more, or for a little more; one of ranks that do not find the sum.
        (HEADLINES, "order G ^ ((size - 1) * M) * (M", "order G ^ ((size - 2) * M) * (M", "half_cuts"),
        (HEADLINES, "open 0 = order G ^ ((P - 1) * M)", "open 0 = order G ^ (P * M)", "half_parts"),
        (CONTROLS, "cut_tight : ~ cut 1 exchange", "cut_tight : ~ cut 0 exchange", "find witness"),
        (
            CONTROLS,
            "cut_refused : ~ cut 0 [Message 0 1 (fun a _ => a)]",
            "cut_refused : ~ cut 0 exchange",
            "find witness",
        ),
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
