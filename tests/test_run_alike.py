"""All ranks of a run that others start are given the same, or all of them are refused, before a byte moves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optcc.errors import InputError
from optcc.runtime.control.channel import Control
from optcc.runtime.control.rendezvous import Membership
from optcc.runtime.control.runner import Runner
from tests.control_star import star, together
from tests.free_port import free_port

ALIKE = {"PLAN": "abc", "--op": "sum"}


def refusal(control: Control, given: tuple[dict[str, str], str, str], transport: str) -> InputError | None:
    """What a rank says that was given this, on this machine."""
    terms, machine, wrong = given
    runner: Any = object.__new__(Runner)
    runner.member = SimpleNamespace(
        exchange=lambda said: control.exchange([said[0], machine, said[2]]),
        tell=control.tell,
        membership=Membership(control.rank, control.world, ("", 0), "", "", terms, wrong),
    )
    try:
        runner._agree(ALIKE, "", transport)
    except InputError as error:
        return error
    return None


@pytest.mark.parametrize("world", [3, 4])
@pytest.mark.parametrize(
    ("told", "transport", "words"),
    [
        ((ALIKE, "here", ""), "local", None),
        ((ALIKE, "there", ""), "verbs", None),
        (
            (ALIKE, "there", ""),
            "local",
            "--transport: local is for one machine, expected tcp or verbs .* rank 2 on another",
        ),
        (
            ({**ALIKE, "PLAN": "abd"}, "here", ""),
            "local",
            "PLAN: rank 2 was given something else than rank 0, expected abc, got 'abd'",
        ),
        (({"PLAN": "abc"}, "here", ""), "local", "--op: rank 2 was given .*, expected sum, got 'nothing'"),
        (({**ALIKE, "--dtype": "int8"}, "here", ""), "local", "--dtype: .*, expected nothing, got 'int8'"),
        (({}, "here", "b.json: cannot be read"), "local", "rank 2: b.json: cannot be read"),
    ],
)
def test_what_ranks_were_given_is_compared(
    world: int, told: tuple[dict[str, str], str, str], transport: str, words: str | None
) -> None:
    with star(world) as (hub, members):
        given = [told if control.rank == 2 else (ALIKE, "here", "") for control in members]
        calls = [lambda c=c, g=g: refusal(c, g, transport) for c, g in zip(members, given, strict=True)]
        refused = together(*calls)
        if words is None:
            assert refused == [None] * world
            return
        reported = [hub.news.get(timeout=10) for _ in members]
    assert {type(each) for each in refused} == {InputError}
    assert len({str(each) for each in refused}) == 1
    assert all(report[1]["refused"][0] == refused[0].what for report in reported)  # type: ignore[index]
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
    ("odd", "given", "words"),
    [
        (1, ["missing.json"], "rank {odd}: missing.json: cannot be read"),
        pytest.param(
            2, ["b.json"], "PLAN: rank {odd} was given something else than rank 0", marks=pytest.mark.long
        ),
        pytest.param(1, ["a.json", "--op", "max"], "--op: rank {odd} was given something", marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_a_rank_with_something_else_is_refused_on_all(plans: Path, odd: int, given: list[str], words: str) -> None:
    statuses, said = run(plans, [given if rank == odd else ["a.json"] for rank in range(3)])
    assert statuses == [2, 2, 2], said
    last = {err.splitlines()[-1] for err in said}
    assert len(last) == 1, said
    assert last.pop().startswith(f"optcc: {words.format(odd=odd)}")


def test_rank_0_tells_the_others_that_its_own_plan_cannot_be(plans: Path) -> None:
    statuses, said = run(plans, [["missing.json"], ["a.json"], ["a.json"]])
    assert statuses == [2, 2, 2], said
    assert all("missing.json: cannot be read" in err.splitlines()[-1] for err in said), said
