"""Evidence of NCCL's log and RAS, and of calibrations; and what is no evidence."""

from __future__ import annotations

from pathlib import Path

import pytest

from optcc.diagnose.evidence import IN, OUT, port
from optcc.diagnose.readers import gather, read_text
from optcc.diagnose.verdict import judge
from optcc.errors import InputError
from tests import diagnosis_texts as texts
from tests.diagnosis_texts import PORTS, RATES


@pytest.mark.parametrize("line", [texts.ERROR_12, texts.OLD_ERROR_12])
def test_error_12_is_between_two_nics_of_a_rail(line: str) -> None:
    found = read_text(texts.log(line), "job.log", PORTS)
    (seen,) = found.observations
    assert seen.failed
    assert set(seen.used) == {port(n, way) for n in (1, 3) for way in (OUT, IN)}
    assert "transport retries exceeded" in found.signs[0].what
    verdict = judge(found, PORTS)
    assert {verdict.findings[0].nic, *verdict.findings[0].twins} == {"server0/nic1", "server1/nic1"}


def test_events_in_the_log() -> None:
    found = read_text(texts.log(texts.PORT_ERROR, texts.SLOWER), "job.log", PORTS)
    assert [(s.nic, s.what, s.grave) for s in found.signs] == [
        (2, "event: port error(10)", True),
        (3, "event: speed changed from 400 to 100 Gb/s", False),
    ]
    verdict = judge(found, PORTS)
    assert [(f.nic, f.left) for f in verdict.findings] == [("server1/nic1", pytest.approx(0.25))]


def test_flushed_requests_name_nobody() -> None:
    flushed = texts.ERROR_12.replace("RETRY_EXC_ERR(12)", "WR_FLUSH_ERR(5)")
    assert not read_text(texts.log(flushed), "job.log", PORTS).observations


def test_a_log_of_other_hosts_is_said() -> None:
    found = read_text(texts.log(texts.ERROR_12).replace("server0", "elsewhere"), "job.log", PORTS)
    assert not found.observations
    assert "elsewhere" in found.unused[0]


def test_a_speed_that_came_back_is_no_fault() -> None:
    back = texts.SLOWER.replace("400000 -> 100000", "100000 -> 400000")
    assert judge(read_text(texts.log(texts.SLOWER), "x", PORTS), PORTS).findings
    assert not judge(read_text(texts.log(texts.SLOWER, back), "x", PORTS), PORTS).findings


def test_ras() -> None:
    found = read_text(texts.RAS, "ras.txt", PORTS)
    assert [(s.server, s.what, s.grave) for s in found.signs] == [
        ("server1", "a process is dead for RAS", True),
        ("server0", "rank 0 is behind: it has launched 6649 of collectives, 3 ranks at 6650", False),
    ]
    assert "192.0.2.9" in found.unused[0]
    assert [s.server for s in read_text(texts.RAS_JSON, "ras.json", PORTS).signs] == ["server1", "server0"]


def test_calibration() -> None:
    found = read_text(texts.calibration(0.5), "cal.yaml", PORTS)
    assert len(found.observations) == 8
    assert found.observations[0].used == {0: pytest.approx(0.98)}
    (slow,) = judge(found, PORTS).findings
    assert (slow.nic, slow.out, slow.into) == ("server1/nic1", pytest.approx(0.5, rel=0.01), None)


@pytest.mark.parametrize(
    ("sources", "says"),
    [
        (["{tmp}/nothing.txt"], "cannot be read"),
        (["{tmp}/poem.txt"], "no evidence that is known"),
        (["{tmp}"], "whose sysfs"),
        (["server1={tmp}"], "cannot be read as sysfs"),
        (["server1={tmp}/sys"] * 3, "too many copies"),
    ],
)
def test_what_is_no_evidence_is_refused(sources: list[str], says: str, tmp_path: Path) -> None:
    (tmp_path / "poem.txt").write_text("shall I compare thee\n")
    texts.sysfs(tmp_path / "sys", RATES)
    if sources[0].endswith("{tmp}"):
        tmp_path = tmp_path / "empty"
        tmp_path.mkdir()
    with pytest.raises(InputError, match=says):
        gather([source.format(tmp=tmp_path) for source in sources], PORTS)


def test_sizes_with_units_are_those_of_nccl_tests() -> None:
    plain = read_text(texts.table("all_reduce", 40000), "t", PORTS).observations
    table = texts.table("all_reduce", 40000).replace(f"{1 << 30:12d} {1 << 28:13d}", f"{'1G':>12} {'256M':>13}")
    assert read_text(table, "t", PORTS).observations == plain
