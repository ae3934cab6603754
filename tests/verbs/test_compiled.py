"""The matrix of faults over queue pairs, with chunks by compiled code, and what that shares with Python."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests import compiled_rig, failover_cuts, failover_runs
from tests.failover_cuts import cut
from tests.failover_matrix import ROWS, cases, every
from tests.failover_rig import Rig
from tests.failover_runs import InconclusiveError
from tests.verbs.jobs import Jobs
from tests.verbs.test_command import optcc_run
from tests.verbs.test_communicator import ONE_BY_ONE, ranks
from tests.verbs.test_failover import CUTS, SETTINGS, VARIANTS, leaf

pytestmark = [pytest.mark.rdma, pytest.mark.usefixtures("compiled")]

LATE = (2, {"another": True, "window": 1})
"""A strike comes when compiled code has returned, and here the acknowledgement that it is to stop has come by then."""
CASES = [case for case in every(VARIANTS) if case != LATE]


@pytest.fixture(autouse=True)
def by_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rig, "engine", compiled_rig.engine)
    monkeypatch.setattr(failover_runs, "nested", leaf)
    monkeypatch.setattr(failover_cuts, "TIMEOUTS", CUTS)
    compiled_rig.taken.clear()


@pytest.mark.parametrize(("number", "how"), cases(CASES, pytest.mark.whole))
def test_row(network: ModuleType, number: int, how: Mapping[str, Any]) -> None:
    jobs = Jobs(network, SETTINGS[number]) if number in SETTINGS else Jobs(network)
    assert ROWS[number].run(jobs, **how)
    assert sum(compiled_rig.taken) > 0


@pytest.mark.parametrize("cuts", [8, pytest.param(200, marks=[pytest.mark.whole])])
def test_random_cuts(network: ModuleType, cuts: int) -> None:
    hits = 0
    for seed in range(cuts):
        try:
            hits += bool(cut(Jobs(network), seed).moved)
        except InconclusiveError:
            continue
        except Exception as error:
            raise AssertionError(f"cut({seed}): {error}") from error
    assert hits > cuts // 4
    assert sum(compiled_rig.taken) > 0


def test_a_run_as_people_type_it(network: ModuleType, tmp_path: Path) -> None:
    """Ranks are processes of their own, which find the code compiled; a link goes down on the way."""
    done = optcc_run(network, tmp_path, "--chunk-path", "compiled", "--cut", "server1/rxe2@0.4", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["exact"]
    assert told["conclusive"]
    assert told["nics_left"]["server1/rxe2"] == 0


def test_calls_of_a_communicator_survive_a_nic(network: ModuleType) -> None:
    said = ranks(network, ONE_BY_ONE, 3, kept=True)
    assert {"struck", "nic down", "moved", "renewed"} <= set(said[1].split(","))


def test_both_have_the_same_formats_and_constants() -> None:
    from optcc.runtime.compiled import completions, queue_pairs
    from optcc.runtime.verbs import backlog, immediate, nic, posting, structs

    assert (queue_pairs.CHAIN, queue_pairs.NUMBER_BITS) == (posting.CHAIN, immediate._NUMBER_BITS)
    assert (structs.SEND_REQUEST.size, structs.RECEIVE_REQUEST.size) == (queue_pairs.SEND, queue_pairs.RECEIVE)
    assert (queue_pairs.SEND_NEXT, queue_pairs.SEND_FLAGS) == (structs.SEND_NEXT, structs.SEND_FLAGS)
    assert queue_pairs.SEND_ELEMENTS == structs.SEND_ELEMENTS
    operations = (structs.WR_RDMA_WRITE, structs.WR_RDMA_WRITE_WITH_IMM, structs.SEND_SIGNALED)
    assert operations == (queue_pairs.WRITE, queue_pairs.WRITE_WITH_IMMEDIATE, queue_pairs.SIGNALED)
    assert (queue_pairs.CHUNK_BYTES, queue_pairs.ACKS_BYTES) == (backlog.CHUNK_BYTES, backlog.ACKS_BYTES)
    assert (queue_pairs.POST_S, completions.FORGET) == (backlog.POST_S, backlog._FORGET)
    assert (nic._BATCH, structs.COMPLETION.size) == (completions.BATCH, completions.COMPLETION)
