"""A rank was lost: errors, events, logs, the diagnosis and its metrics say the same verdict."""

from __future__ import annotations

import logging
import re
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import optcc
from optcc.diagnose.diagnosis import diagnose, metrics_text
from optcc.diagnose.evidence import NicDirections
from optcc.diagnose.lost_ranks import looks_like_lost_ranks
from optcc.diagnose.readers import gather, read_text
from optcc.discover import load_topology
from optcc.errors import InputError
from optcc.runtime.errors import RankFailedError
from tests.communicators import Ranks
from tests.test_architecture import ROOT

PORTS = NicDirections(load_topology("uniform:servers=3,nics=2,rate=100Gb/s").cluster)


def lost(ranks: Ranks) -> list[RankFailedError]:
    """What ranks 0 and 2 raise when rank 1 leaves."""

    def call(comm: optcc.Communicator) -> Any:
        comm.all_reduce(np.zeros(10))
        if comm.rank == 1:
            return comm.abort("the data loader has ended")
        comm.barrier()
        return None

    ranks.each(call)  # the first call may fail, too
    found = ranks.each(lambda comm: comm.barrier())
    assert all(isinstance(found[rank], RankFailedError) for rank in (0, 2))
    return [found[0], found[2]]


def test_all_say_the_same_verdict(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told: list[list[str]] = [[], []]
    with caplog.at_level(logging.INFO), Ranks(3) as ranks:
        errors = lost(ranks)
        verdict = str(errors[0])
        assert verdict == str(errors[1]) == "rank 1 failed: left: the data loader has ended"
        for rank, said in zip((0, 2), told, strict=True):
            said += [note.text for note in ranks.comms[rank].events() if note.kind == "verdict"]
    assert told == [[verdict], [verdict]], "once, though two calls raised it"
    log = "\n".join(f"{each.levelname}:{each.name}:{each.getMessage()}" for each in caplog.records)
    for rank in (0, 2):
        assert f"WARNING:optcc.communicator:rank {rank}: verdict {verdict}" in log.splitlines()

    trace = "".join(traceback.format_exception(errors[0]))
    for name, text in {"trace": trace, "log": log, "both": log + "\n" + trace}.items():
        path = tmp_path / f"{name}.txt"
        path.write_text(text)
        evidence = gather([str(path)], PORTS)
        (sign,) = evidence.signs
        assert (sign.what, sign.server, sign.rank, sign.grave) == (verdict, "server1", 1, True)
        assert not evidence.unused
        made = diagnose(PORTS.cluster, evidence)
        assert [each.what for each in made.verdict.signs] == [verdict]
        (family,) = (
            each
            for each in text_string_to_metric_families(metrics_text(made).decode())
            if each.name == "optcc_rank_failed"
        )
        assert [each.labels for each in family.samples] == [{"server": "server1", "rank": "1", "verdict": verdict}]


@pytest.mark.parametrize(
    "line",
    [
        "rank 2 failed: its process has ended, or its connection was cut",
        "2026-11-30 10:00:00,123 WARNING optcc.runtime.control.overseer: rank 2 failed: no sign of life; elsewhere: so",
        "[rank0]: optcc.runtime.errors.RankFailedError: rank 2 failed: left: ValueError: boom",
        "RuntimeError: RankFailedError: rank 2 failed: no way is left",
        "rank 0: verdict rank 2 failed: called something else than the others: rank 2: barrier(); rank 0: split()",
        "optcc.runtime.errors.RankFailedError: rank 2 has closed its communicator",
    ],
)
def test_a_verdict_is_found_in_a_line_of_any_log(line: str) -> None:
    (sign,) = read_text(f"epoch 3, loss 0.5\n{line}\n", "job.log", PORTS).signs
    assert (sign.rank, sign.server, sign.where) == (2, "server2", "job.log:2")
    assert sign.what == line[line.index("rank 2 ") :]
    assert sign.grave == ("failed" in line)


@pytest.mark.parametrize(
    "line",
    [
        "pipeline stage of rank 2 failed: retried",
        "cannot grow from 3 to 4 ranks: rank 3 failed: not there: 1 of 4 ranks have not come",
        "rank 2 failed",
        "",
    ],
)
def test_other_words_are_no_verdict(line: str) -> None:
    assert not looks_like_lost_ranks(line)
    with pytest.raises(InputError, match="no evidence that is known"):
        read_text(f"epoch 3\n{line}\n", "job.log", PORTS)


def test_ranks_of_a_smaller_group_and_of_another_job_are_not_told_by_server() -> None:
    """After shrink the numbers are others."""
    text = "rank 0 failed: left: once\nrank 0 failed: left: once\nrank 1 failed: left: twice\n"
    found = read_text(text, "job.log", PORTS)
    assert [(sign.where, sign.server) for sign in found.signs] == [("job.log:1", "server0")]
    assert found.unused == ("job.log:3: rank 1 failed: left: twice: of a smaller group, whose numbers are others",)
    found = read_text("rank 7 failed: left: once\n", "job.log", PORTS)
    assert found.signs == ()
    assert found.unused == ("job.log:1: rank 7 failed: left: once: the topology has 3 ranks",)


# --- the page --------------------------------------------------------------------------------------------------------

SOURCES = [
    *(ROOT / "runtime" / "control").glob("*.py"),
    *(ROOT / "optcc" / "communicator").glob("*.py"),
    *(ROOT / "runtime" / f"{name}.py" for name in ("errors", "messages")),
]
VARY = r"\.\.\.|\brank [NM]\b|to HOST:PORT|[0-9][0-9, ]*|ValueError: boom|KeyboardInterrupt|within"
"""Parts of an error that differ from one to the next."""


def unsaid(page: str) -> list[str]:
    """Words of errors that begin rows of the page's tables and that the code has not."""
    code = re.sub(r'"\s*\n\s*f?"', "", "\n".join(file.read_text() for file in SOURCES))
    told = [part for each in re.findall(r"^\| `([^`]+)`", page, re.MULTILINE) for part in re.split(VARY, each)]
    return [part for part in told if len(part.strip()) > 3 and part.strip() not in code]


def test_the_page_has_the_words_of_the_code() -> None:
    page = (ROOT / "docs" / "rank-lost.md").read_text()
    tables = page[page.index("## The verdicts") : page.index("## What to do")]
    assert tables.count("\n| `") > 12
    assert unsaid(tables) == []
    assert unsaid("| `left: ValueError: boom`, `x` |\n| `has gone away for 7 s` |\n") == ["has gone away for "]
