"""Which rank is late, missing, ahead or behind: told as records have it, and held against no NIC."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from optcc.diagnose.evidence import NicDirections
from optcc.diagnose.late import ENOUGH, late_ranks
from optcc.diagnose.ras import read_ras
from optcc.diagnose.readers import gather, read_text
from optcc.diagnose.verdict import Outcome, judge
from optcc.values.cluster import Cluster
from tests import diagnosis_texts as texts

PORTS = NicDirections(Cluster.uniform(servers=3, nics=2, gpus=2, rate="400Gb/s"))
HEALTHY_US = 19000


def seen(late: dict[int, float], ranks: int, collectives: int, jitter: float = 2e-4) -> list[dict[int, float]]:
    """What each rank sees of collectives of 19 ms, where ranks come so many seconds later than they could."""
    rng = random.Random(1)
    found = []
    for _ in range(collectives):
        came = {rank: late.get(rank, 0.0) + rng.uniform(0, jitter) for rank in range(ranks)}
        end = max(came.values()) + HEALTHY_US * 1e-6
        found.append({rank: end - at for rank, at in came.items()})
    return found


@pytest.mark.parametrize("ranks", [2, 3, 4, 16])
def test_a_rank_that_always_comes_late_is_told(ranks: int) -> None:
    (one,) = late_ranks(seen({1: 0.2}, ranks, 20))
    assert (one.rank, one.times, one.of) == (1, 20, 20)
    assert one.by_s == pytest.approx(0.2, rel=0.02)
    assert "rank 1 comes late: last in 20 of 20 collectives, 2" in str(one)


def test_a_whole_server_that_comes_late_is_told() -> None:
    assert {one.rank for one in late_ranks(seen({4: 0.2, 5: 0.2, 6: 0.2, 7: 0.2}, 16, 20))} == {4, 5, 6, 7}


def test_nobody_is_late_where_all_come_together_or_by_turns() -> None:
    assert late_ranks(seen({}, 8, 50)) == ()
    turns = [seen({number % 4: 0.2}, 4, 1)[0] for number in range(40)]
    assert late_ranks(turns) == ()
    assert late_ranks(seen({1: 0.2}, 4, ENOUGH - 1)) == ()
    assert late_ranks(seen({1: 0.0015}, 4, 20)) == ()  # less than a tenth of the collective


def inspected(tmp_path: Path, late: dict[int, float], without: dict[int, range] | None = None) -> list[str]:
    """Files of 6 ranks on 3 servers, 20 collectives; `without` : rank -> collectives of which its record is missing."""
    collectives, missing = seen(late, 6, 20), without or {}
    for rank in range(6):
        times = {n: round(each[rank] * 1e6) for n, each in enumerate(collectives) if n not in missing.get(rank, ())}
        text = texts.inspector(rank, times, ranks=6, nodes=2)
        record = text.replace(texts.HOSTS[0], f"server{rank // 2}").replace(texts.HOSTS[1], f"server{rank // 2}")
        (tmp_path / f"{rank}.log").write_text(record.replace('"nnodes": 2', '"nnodes": 3'))
    return [str(tmp_path / f"{rank}.log") for rank in range(6) if (tmp_path / f"{rank}.log").read_text().strip()]


def test_the_late_rank_of_a_running_job_is_told_and_no_nic_is_blamed(tmp_path: Path) -> None:
    found = gather(inspected(tmp_path, {3: 0.2}), PORTS)
    ((what, server, nic),) = [(sign.what, sign.server, sign.nic) for sign in found.signs]
    assert (what.startswith("rank 3 comes late"), server, nic) == (True, "server1", None)
    verdict = judge(found, PORTS)
    assert (verdict.outcome, len(verdict.signs)) == (Outcome.HEALTHY, 1)


def test_collectives_of_one_communicator_are_one_run(tmp_path: Path) -> None:
    verdict = judge(gather(inspected(tmp_path, {}), PORTS), PORTS)
    assert (verdict.measured, verdict.averaged) == (20, 1)


def test_a_rank_without_records_may_be_the_late_one(tmp_path: Path) -> None:
    """Rank 3 comes late, and its file is missing: what the others saw is no measurement of their NICs."""
    found = gather(inspected(tmp_path, {3: 0.2}, {3: range(20)}), PORTS)
    assert {seen.least for seen in found.observations} == {True}
    assert "no records of 1 of its 6 ranks, 3: any of them may have come last" in found.unused[0]
    assert judge(found, PORTS).findings == ()
    whole = gather(inspected(tmp_path, {3: 0.2}), PORTS)
    assert {seen.least for seen in whole.observations} == {False}


def test_single_records_that_are_missing_are_counted(tmp_path: Path) -> None:
    found = gather(inspected(tmp_path, {3: 0.2}, {3: range(4), 5: range(3, 6)}), PORTS)
    assert [seen.least for seen in found.observations].count(True) == 6
    assert "6 collectives without the records of all ranks" in found.unused[0]


def test_inspector_says_that_a_tree_was_used(tmp_path: Path) -> None:
    for rank in range(4):
        text = texts.inspector(rank, {1: 40000}).replace('"coll_sn"', '"coll_algo": "TREE", "coll_sn"')
        (tmp_path / f"{rank}.log").write_text(text)
    found = gather([str(tmp_path / f"{rank}.log") for rank in range(4)], texts.PORTS)
    assert max(found.observations[0].used.values()) == pytest.approx(0.5 * (1 << 30) / 0.04 / 50e9)


def test_the_late_process_of_nccl_tests_is_told() -> None:
    """Two processes with two GPUs each; process 1 is 50 ms behind."""
    value = json.loads(texts.json_table(40000))
    times = [[90000.0 + n for n in range(20)], [40000.0 + n for n in range(20)]]
    value["results"][0]["out_of_place_per_iter"] = {"per_process_max_times_us": times}
    (sign,) = read_text(json.dumps(value), "x.json", texts.PORTS).signs
    assert sign.what.startswith("rank 2 comes late: last in 20 of 20 collectives, 50 ms")
    assert sign.server == "server1"
    value["results"][0]["out_of_place_per_iter"] = {"per_process_max_times_us": [times[0], times[0]]}
    assert read_text(json.dumps(value), "x.json", texts.PORTS).signs == ()


MISMATCH = """Job summary
===========

Warnings
========

#0-0 (0123456789abcdef) MISMATCH
  Communicator ranks have different AllGather operation counts
{lines}
"""
PLACE = "GPU 0 managed by process 30{0} on node server{0}"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            ["4 ranks have launched up to operation 640", "2 ranks have launched up to operation 641",
             f"Rank 2 -- {PLACE.format(1)}", f"Rank 3 -- {PLACE.format(1)}"],
            [("server1", f"rank {r} is ahead: it has launched 641 of AllGather, 4 ranks at 640: the others are late")
             for r in (2, 3)],
        ),
        (
            ["5 ranks have launched up to operation 64",
             f"Rank 4 has launched up to operation 60 -- {PLACE.format(2)}"],
            [("server2", "rank 4 is behind: it has launched 60 of AllGather, 5 ranks at 64")],
        ),
        (
            ["4 ranks have launched up to operation 7", f"Rank 0 has launched up to operation 8 -- {PLACE.format(0)}",
             f"Rank 5 has not launched any operations -- {PLACE.format(2)}"],
            [("server0",
              "rank 0 is ahead: it has launched 8 of AllGather, 4 ranks at 7, 1 rank at 0: the others are late"),
             ("server2", "rank 5 is behind: it has launched 0 of AllGather, 4 ranks at 7, 1 rank at 8")],
        ),
        (
            ["5 ranks have launched up to operation 641", "1 rank has launched up to operation 640",
             f"Rank 3 -- {PLACE.format(1)}"],
            [("server1", "rank 3 is behind: it has launched 640 of AllGather, 5 ranks at 641")],
        ),
        (
            ["some ranks have launched up to operation 641", "1 rank has launched up to operation 640",
             f"Rank 3 -- {PLACE.format(1)}"],
            [("server1", "rank 3 has launched 640 of AllGather, which is not what the others have")],
        ),
    ],
)  # fmt: skip
def test_ranks_ahead_and_behind_are_told_apart(lines: list[str], told: list[tuple[str, str]]) -> None:
    found = read_ras(MISMATCH.format(lines="\n".join(f"  {line}" for line in lines)), "ras.txt", PORTS)
    assert [(sign.server, sign.what) for sign in found.signs] == told
    assert not any(sign.grave for sign in found.signs)


def test_a_status_that_differs_is_told() -> None:
    text = MISMATCH.replace("AllGather operation counts", "status").format(
        lines=f"  5 ranks have status RUNNING\n  Rank 1 has status FINALIZE -- {PLACE.format(0)}"
    )
    (sign,) = read_ras(text, "ras.txt", PORTS).signs
    assert sign.what == "rank 1 has status FINALIZE; 5 ranks with RUNNING"


@pytest.mark.parametrize(("odd", "word"), [(101, "ahead"), (99, "behind")])
def test_json_of_ras_counts_collectives(odd: int, word: str) -> None:
    counts = [{"AllReduce": odd if rank == 3 else 100, "Broadcast": 4} for rank in range(6)]
    ranks = [{"rank": r, "host": f"server{r // 2}", "collective_counts": each} for r, each in enumerate(counts)]
    (sign,) = read_ras(json.dumps({"communicators": [{"ranks": ranks}]}), "ras.json", PORTS).signs
    assert (sign.server, sign.what.startswith(f"rank 3 is {word}: it has launched {odd}")) == ("server1", True)


def test_json_of_ras_tells_a_rank_in_another_state() -> None:
    ranks = [{"rank": r, "host": f"server{r // 2}", "status": {"abort_flag": r == 3}} for r in range(6)]
    (sign,) = read_ras(json.dumps({"communicators": [{"ranks": ranks}]}), "ras.json", PORTS).signs
    assert (sign.server, sign.what) == ("server1", "rank 3 has status ABORT; 5 ranks with RUNNING")


def test_trouble_without_a_process_is_told() -> None:
    text = MISMATCH.format(lines="").partition("#0-0")[0] + "TIMEOUT\n  Encountered 2 communication timeouts\n"
    found = read_ras(text, "ras.txt", PORTS)
    assert not found.signs
    assert found.unused == ("ras.txt:7: TIMEOUT in RAS, without a process",)
