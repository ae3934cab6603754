"""What of the evaluation is held against the target, what misses it, and whether the page in docs is up to date."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from optcc.study import page
from optcc.study.cells import SweepCell
from optcc.study.evaluation import FAULT_FREE, OPTCC, Case
from tests.studied import MIB, RAILS, TINY, outcomes, result
from tests.test_evaluation_cells import run

PLANTED = {
    "1, 2": Case(4, (1,), 256 * MIB, OPTCC),
    "3": Case(4, (2, 1), 256 * MIB, OPTCC, staggered=True),
    "4": Case(4, (4,), 256 * MIB, OPTCC),
}


def test_what_is_held() -> None:
    cells = {(h.section, h.failure) for h in page.held(TINY, outcomes())}
    assert cells == {
        ("1, 2", "1 of one server"), ("1, 2", "4 of one server"), ("3", "1 of one server"),
        ("3", "1 each of 2 servers"), ("3", "2, 1 of 2 servers, of server i from NIC i on"), ("4", "4 of one server"),
        ("5", "server1 rail 0 of 2 rails, spine 2 to 1"),
    }  # fmt: skip
    assert page.counts(page.held(TINY, outcomes())) == (0, 5)  # two of the seven are in two sections


def test_small_messages_are_not_held() -> None:
    small = Case(4, (1,), 64 * MIB, OPTCC)
    assert small in TINY.stragglers
    assert page.counts(page.held(TINY, outcomes(small, above=9.0)))[0] == 0


@pytest.mark.parametrize("planted", [*PLANTED.values(), RAILS], ids=[*PLANTED, "5"])
def test_a_planted_miss_of_any_section_is_at_the_top(planted: Case | SweepCell) -> None:
    assert page.counts(page.held(TINY, outcomes()))[0] == 0
    assert not any("+1.1" in line for line in page.target_lines(TINY, outcomes()))
    results = outcomes(planted)
    assert page.counts(page.held(TINY, results)) == (1, 5)
    failure = page.where(planted) if isinstance(planted, Case) else "server1 rail 0 of 2 rails, spine 2 to 1"
    top = page.target_lines(TINY, results)
    assert sum("**+1.1**" in line and f"| {failure} |" in line for line in top) == 1
    assert any("**4 of 5 cells meet it**" in line for line in top)


def test_a_planted_miss_is_marked_and_counted_in_its_section() -> None:
    results = outcomes(PLANTED["3"])
    assert "| 3 | 3 | 2 | 1 |" in page.target_lines(TINY, results)
    assert "| 1, 2 | 2 | 2 | 0 |" in page.target_lines(TINY, results)
    marked = [line for line in page.several_table(TINY, results) if "(miss)" in line]
    assert len(marked) == 1
    assert "of server i from NIC i on" in marked[0]
    assert not any("(miss)" in line for line in page.target_table(TINY, results))


@pytest.mark.parametrize(("short", "marked"), [(1e-6, True), (-1e-6, False)])
def test_cells_beyond_every_schedule_of_whole_chunks_are_marked(short: float, marked: bool) -> None:
    """The bound with costs of one cell is a little above the target, or a little below."""
    cell, results = Case(4, (4,), 256 * MIB, OPTCC), outcomes()
    results[cell] = result(2.0, 1.2, 1.21 * (1 + short))
    top = page.target_lines(TINY, results)
    assert page.counts(page.held(TINY, results))[0] == 1
    assert [line for line in top if line.startswith("| ") and "†" in line] == (
        [line for line in top if "| 4 of one server |" in line] if marked else []
    )
    assert any(line.startswith("† marks 1 of these 1 cells") for line in top) == marked
    assert any("bounds.md#with-latency-and-chunks" in line for line in top) == marked


@pytest.mark.parametrize(("short", "marked"), [(1e-6, True), (-1e-6, False)])
def test_rails_beyond_every_schedule_of_whole_chunks_are_marked(short: float, marked: bool) -> None:
    results = outcomes()
    results[RAILS.job.key] = result(2.0, 1.2, 1.21 * (1 + short))
    assert [h.section for h in page.held(TINY, results) if h.missed] == ["5"]
    assert [h.section for h in page.held(TINY, results) if h.beyond] == (["5"] if marked else [])


def test_a_cell_that_meets_the_target_is_not_marked() -> None:
    results = outcomes()
    assert not any(h.beyond for h in page.held(TINY, results))
    results |= {cell: replace(found, simulated_s=found.time_s * 1e-6) for cell, found in results.items()}
    assert page.counts(page.held(TINY, results))[0] == 0
    assert not any(h.beyond for h in page.held(TINY, results))


def test_two_servers_with_half_their_nics_are_beyond_on_the_real_ring() -> None:
    ring, two, one = (run(8, dead, 256 * MIB, "balance") for dead in ((), (4, 4), (4,)))
    beyond = [
        ring.time_s * (1 + (found.unavoidable_overhead or 0) + page.TARGET) < (found.with_costs_s or 0)
        for found in (two, one)
    ]
    assert beyond == [True, False]


def test_a_plan_without_a_time_misses() -> None:
    assert page.counts(page.held(TINY, outcomes(PLANTED["3"], above=float("nan"))))[0] == 1


def test_overheads_are_over_the_fault_free_ring() -> None:
    cell = Case(4, (4,), 256 * MIB, "balance")
    assert page.overhead(cell, outcomes()) == pytest.approx(2)
    assert page.unavoidable(cell, outcomes()) == pytest.approx(0.2)


DOCS_PAGE = Path(__file__).parents[1] / "docs" / "evaluation.md"
TEMPLATE = Path(page.__file__).parent / "page.md"
HEAD = "optcc less unavoidable, 256MiB"


def stated(cell: Case) -> float:
    """What the page in docs says of its failure, in percentage points above the unavoidable, at 256 MiB."""
    lines = DOCS_PAGE.read_text(encoding="utf-8").splitlines()
    (head,) = (line for line in lines if HEAD in line)
    begin = f"| {cell.servers} | {sum(cell.dead)} | {page.where(cell)} |"
    (row,) = (line for line in lines if line.startswith(begin))
    return float(row.split(" | ")[head.split(" | ").index(HEAD)].split()[0])


def test_the_page_in_docs_says_first_what_the_next_one_will() -> None:
    """What a referee found stands in the text that pages are made of, too."""
    made, docs = (page.read_text(encoding="utf-8").split("Made by")[0] for page in (TEMPLATE, DOCS_PAGE))
    assert "What a referee found" in docs
    assert made == docs


@pytest.mark.parametrize("dead", [(4, 4), (3, 3)], ids=str)
def test_the_page_in_docs_is_what_the_code_gives(dead: tuple[int, ...]) -> None:
    cell = Case(8, dead, 256 * MIB, OPTCC)
    both = {cell: run(8, dead, cell.nbytes, OPTCC), cell.of(FAULT_FREE): run(8, (), cell.nbytes, "ring")}
    found = 100 * page.above(cell, both)
    another = replace(cell, dead=(1,) * 4)
    assert found == pytest.approx(stated(cell), abs=0.1)
    assert found != pytest.approx(stated(another), abs=0.1)
