"""Which notes belong to which fault, and what of them proves that it met something. No processes: notes are made up."""

from __future__ import annotations

from fractions import Fraction

import pytest

from optcc.fault_run.results import Failover, failovers_of, proved
from optcc.runtime.control.launch import Collective
from optcc.runtime.messages import Note, Ran, Strike
from tests.one_fault import failover_of

NIC, FAR = "server1/nic0", "server0/nic0"
START = 10.0


def collective(*notes: Note, seconds: float = 1.0, sent: int = 1000, error_s: float = 0.0) -> Collective:
    return Collective((Ran(START, START + seconds, 0.0, {NIC: sent}, list(notes), {}, error_s),), (True,))


def struck(at: float, kind: str = "cut", nic: str = NIC) -> Note:
    return Note(START + at, "struck", nic, cause=kind)


def lost(at: float, nbytes: int = 0, cause: str = "port event") -> list[Note]:
    """A wire that is lost, fenced, and whose flow moves."""
    return [
        Note(START + at, "lost", NIC, FAR, cause),
        Note(START + at + 0.01, "fenced", NIC, FAR),
        Note(START + at + 0.02, "moved", NIC, FAR, cause, "", nbytes),
    ]


def is_proved(strike: Strike, hit: Collective, lost: dict[str, Fraction] | None = None) -> bool:
    return proved(strike, failover_of(strike, hit), hit, collective(), lost or {})


HEALED = Note(START + 0.55, "healed", NIC, cause="flap", held=4)
SLOWED = Note(START + 1.0, "slowed", NIC, cause="slow", nbytes=500)
MEASURED = {NIC: Fraction(1, 2)}
PROOFS = {
    "flap": ([struck(0.5, "flap"), HEALED], {}),
    "hole": ([struck(0.5, "hole"), *lost(0.6, 100, "no progress")], {}),
    "cut": ([struck(0.5, "cut"), *lost(0.6, 100)], {}),
    "slow": ([struck(0.5, "slow"), SLOWED], MEASURED),
}


@pytest.mark.parametrize("kind", PROOFS)
def test_a_fault_that_met_something_is_proved(kind: str) -> None:
    notes, lost = PROOFS[kind]
    assert is_proved(Strike(kind, NIC, 0.5), collective(*notes), lost)


@pytest.mark.parametrize("kind", PROOFS)
def test_without_the_note_that_it_struck_nothing_is_proved(kind: str) -> None:
    """However late the collective was, and whatever else was noted and measured."""
    notes, lost = PROOFS[kind]
    hit = collective(*notes[1:], seconds=9.0, sent=0)
    assert failover_of(Strike(kind, NIC, 0.5), hit) == Failover(NIC, kind, None)
    assert not is_proved(Strike(kind, NIC, 0.5), hit, lost)


@pytest.mark.parametrize(
    "notes",
    [
        [struck(0.5, "flap", "server1/nic1"), HEALED],  # another NIC
        [struck(0.5, "hole"), HEALED],  # another fault
    ],
)
def test_the_note_of_another_strike_proves_nothing(notes: list[Note]) -> None:
    assert not is_proved(Strike("flap", NIC, 0.5), collective(*notes, seconds=9.0))


@pytest.mark.parametrize(
    ("kind", "after", "measured"),
    [
        ("flap", [], {}),
        ("flap", [Note(START + 0.55, "healed", NIC, cause="flap")], {}),  # held nothing back
        ("flap", [Note(START + 0.55, "healed", "server1/nic1", cause="flap", held=4)], {}),  # another NIC's
        ("hole", [], {}),
        ("hole", lost(0.6), {}),  # moved, and owed nothing
        ("cut", lost(0.6), {}),
        ("slow", [], MEASURED),  # slow by the probes, and nothing had left by it
        ("slow", [SLOWED], {}),  # not slow by the probes
    ],
)
def test_what_met_nothing_is_not_proved_however_late_all_was(
    kind: str, after: list[Note], measured: dict[str, Fraction]
) -> None:
    assert not is_proved(Strike(kind, NIC, 0.5), collective(struck(0.5, kind), *after, seconds=9.0), measured)


def test_less_traffic_than_usual_proves_a_loss() -> None:
    assert is_proved(Strike("cut", NIC, 0.5), collective(struck(0.5), *lost(0.6), sent=600))


FIRST = [struck(0.2, "hole"), *lost(0.3, 100, "no progress")]


def test_a_second_strike_is_not_credited_with_the_first() -> None:
    strikes = [Strike("hole", NIC, 0.2), Strike("receiver", NIC, 0.9)]
    hit = collective(*FIRST, struck(0.9, "receiver"), sent=600)
    first, second = failovers_of(strikes, hit.notes, hit.start_s)
    assert (first.at_s, first.cause, first.replayed_bytes) == (pytest.approx(0.2), "no progress", 100)
    assert first.detected_s == pytest.approx(0.1)
    assert second == Failover(NIC, "receiver", pytest.approx(0.9))
    assert proved(strikes[0], first, hit, collective(), {})
    assert not proved(strikes[1], second, hit, collective(), {})
    assert not proved(strikes[1], failovers_of(strikes, hit.notes, START)[1], hit, collective(), {})


def test_a_second_strike_has_what_follows_it() -> None:
    strikes = [Strike("hole", NIC, 0.2), Strike("receiver", NIC, 0.9)]
    hit = collective(*FIRST, struck(0.9, "receiver"), *lost(0.95, 7), sent=600)
    first, second = failovers_of(strikes, hit.notes, hit.start_s)
    assert (first.replayed_bytes, second.replayed_bytes) == (100, 7)
    assert second.detected_s == pytest.approx(0.05)
    assert proved(strikes[1], second, hit, collective(), {})


def test_traffic_that_the_first_strike_diverted_proves_nothing_of_the_second() -> None:
    strikes = [Strike("hole", NIC, 0.2), Strike("cut", NIC, 0.9)]
    hit = collective(*FIRST, struck(0.9), Note(START + 0.9, "nic down", NIC, cause="port event"), sent=600)
    second = failovers_of(strikes, hit.notes, hit.start_s)[1]
    assert second.detected_s is not None
    assert not proved(strikes[1], second, hit, collective(), {})


def test_a_nic_that_was_cut_cannot_be_hit_again() -> None:
    """What peers are late to notice comes of the cut."""
    strikes = [Strike("cut", NIC, 0.5), Strike("hole", NIC, 0.51)]
    hit = collective(struck(0.5), struck(0.51, "hole"), *lost(0.52, 100))
    assert failovers_of(strikes, hit.notes, START)[1] == Failover(NIC, "hole", pytest.approx(0.51))


@pytest.mark.parametrize(("sent", "hit_it"), [(600, True), (1000, False)])
def test_traffic_that_a_cut_diverted_is_its_own_whatever_struck_the_nic_later(sent: int, hit_it: bool) -> None:
    strikes = [Strike("cut", NIC, 0.5), Strike("hole", NIC, 0.8)]
    hit = collective(struck(0.5), *lost(0.52), struck(0.8, "hole"), sent=sent)
    both = failovers_of(strikes, hit.notes, START)
    assert proved(strikes[0], both[0], hit, collective(), {}) is hit_it
    assert not proved(strikes[1], both[1], hit, collective(), {})


def test_two_alike_are_told_apart_by_their_order() -> None:
    again = Note(START + 0.85, "healed", NIC, cause="flap", held=9)
    strikes = [Strike("flap", NIC, 0.8), Strike("flap", NIC, 0.5)]  # in any order
    notes = [struck(0.5, "flap"), HEALED, struck(0.8, "flap"), again]
    late, early = failovers_of(strikes, notes, START)
    assert (early.at_s, early.held) == (pytest.approx(0.5), 4)
    assert (late.at_s, late.held) == (pytest.approx(0.8), 9)
    late, early = failovers_of(strikes, notes[:2], START)
    assert (early.held, late) == (4, Failover(NIC, "flap", None))


def test_what_a_fault_did_up_to_the_end_is_its_own_though_others_struck_since() -> None:
    strikes = [Strike("slow", NIC, 0.5), Strike("cut", NIC, 0.8)]
    slow, cut = failovers_of(strikes, [struck(0.5, "slow"), struck(0.8), *lost(0.81, 7), SLOWED], START)
    assert (slow.slowed_bytes, slow.replayed_bytes) == (500, 0)
    assert (cut.slowed_bytes, cut.replayed_bytes) == (0, 7)


def test_a_broken_path_is_credited_with_its_own_wires_only() -> None:
    strike = Strike("path", NIC, 0.5, far=FAR)
    other = Note(START + 0.55, "moved", NIC, "server2/nic0", "port event", "", 9)
    elsewhere = Note(START + 0.5, "struck", NIC, "server2/nic0", "path")
    hit = collective(elsewhere, Note(START + 0.5, "struck", NIC, FAR, "path"), other, *lost(0.6, 100))
    found = failover_of(strike, hit)
    assert (found.detected_s, found.replayed_bytes) == (pytest.approx(0.1), 100)
    assert not is_proved(strike, collective(elsewhere, other, *lost(0.6, 100)))


@pytest.mark.parametrize(("error_s", "found"), [(0.0, None), (0.001, 0.0)])
def test_another_machine_may_seem_to_notice_before_the_fault(error_s: float, found: float | None) -> None:
    early = Note(START + 0.4985, "lost", FAR, NIC, "connection closed")
    failover = failover_of(Strike("cut", NIC, 0.5), collective(early, struck(0.5), error_s=error_s))
    assert failover.detected_s == found
