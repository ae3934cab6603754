"""All ranks of a run that others start are given the same, or all of them are refused, before a byte moves."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from optcc.errors import InputError
from optcc.runtime.control.channel import Control
from optcc.runtime.control.serving import _serve
from optcc.runtime.control.worker import Worker
from optcc.runtime.messages import Told
from tests.control_star import star, together
from tests.free_port import free_port

ALIKE = {"PLAN": "abc", "--op": "sum"}


def refusal(control: Control) -> InputError | None:
    """What a rank is told, which then leaves."""
    with control:
        return _serve(cast(Worker, control), control)


@pytest.mark.parametrize("world", [3, 4])
@pytest.mark.parametrize(
    ("told", "transport", "words"),
    [
        (Told(ALIKE, "here"), "local", None),
        (Told(ALIKE, "there"), "verbs", None),
        (Told(ALIKE, "there"), "local", "--transport: local is for one machine, expected verbs .* rank 2 on another"),
        (
            Told({**ALIKE, "PLAN": "abd"}, "here"),
            "local",
            "PLAN: rank 2 was given something else than rank 0, expected abc, got 'abd'",
        ),
        (Told({"PLAN": "abc"}, "here"), "local", "--op: rank 2 was given .*, expected sum, got 'nothing'"),
        (Told({**ALIKE, "--dtype": "int8"}, "here"), "local", "--dtype: .*, expected nothing, got 'int8'"),
        (Told({}, "here", "b.json: cannot be read"), "local", "rank 2: b.json: cannot be read"),
    ],
)
def test_what_ranks_were_given_is_compared(world: int, told: Told, transport: str, words: str | None) -> None:
    with star(world) as (hub, members):
        for control in members[1:]:
            control.tell(told if control.rank == 2 else Told(ALIKE, "here"))
        if words is None:
            hub.agree(Told(ALIKE, "here"), transport, 10)
            return
        refused = together(
            lambda: hub.agree(Told(ALIKE, "here"), transport, 10),
            *(partial(refusal, control) for control in members),
        )
    assert {type(each) for each in refused} == {InputError}
    assert len({str(each) for each in refused}) == 1
    with pytest.raises(InputError, match=f"^{words}"):
        raise refused[0]


def optcc(*arguments: str, where: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "optcc", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=where)


def run(where: Path, given: list[list[str]]) -> tuple[list[int], list[str]]:
    """By rank, the exit status, and stderr, of a job whose ranks were given these."""
    common = ["--rendezvous", f"127.0.0.1:{free_port()}", "--world", str(len(given))]
    started = [optcc("run", *each, *common, "--rank", str(rank), where=where) for rank, each in enumerate(given)]
    try:
        said = [process.communicate(timeout=200)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    return [process.returncode for process in started], said


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two plans of one cluster, a.json and b.json."""
    where = tmp_path_factory.mktemp("plans")
    for name, more in [("a.json", []), ("b.json", ["--segments", "3"])]:
        plan = "plan", "uniform:servers=3,nics=1,rate=1Gb/s", "--size", "1MiB"
        assert optcc(*plan, "-o", name, *more, where=where).wait(120) == 0
    return where


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["missing.json"], "rank {odd}: missing.json: cannot be read"),
        pytest.param(
            ["b.json"], "PLAN: rank {odd} was given something else than rank 0", marks=pytest.mark.long
        ),
        pytest.param(["a.json", "--op", "max"], "--op: rank {odd} was given something", marks=pytest.mark.long),
    ],
)  # fmt: skip
@pytest.mark.parametrize("odd", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_rank_with_something_else_is_refused_on_all(plans: Path, given: list[str], words: str, odd: int) -> None:
    statuses, said = run(plans, [given if rank == odd else ["a.json"] for rank in range(3)])
    assert statuses == [2, 2, 2], said
    last = {err.splitlines()[-1] for err in said}
    assert len(last) == 1, said
    assert last.pop().startswith(f"optcc: {words.format(odd=odd)}")


def test_rank_0_tells_the_others_that_its_own_plan_cannot_be(plans: Path) -> None:
    statuses, said = run(plans, [["missing.json"], ["a.json"], ["a.json"]])
    assert statuses == [2, 2, 2], said
    assert all("missing.json: cannot be read" in err.splitlines()[-1] for err in said), said
