"""OPTCC_DEBUG: what a communicator says of what it has chosen."""

from __future__ import annotations

import re

import numpy as np
import pytest

from optcc.communicator.prepared import SMALL
from optcc.runtime.compiled.choice import path_of, warm
from tests.communicators import Ranks


@pytest.mark.parametrize("path", ["python", "compiled"])
def test_it_says_what_it_goes_by_once(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPTCC_DEBUG", "info")
    monkeypatch.setenv("OPTCC_PATH", path)
    warm(path_of(path, "local", "cpu"))  # else the first use on a machine has a line of its own
    with Ranks(2, "uniform:servers=2,nics=2,rate=100Gb/s") as ranks:
        for _ in range(2):
            ranks.good(lambda comm: comm.all_reduce(np.zeros(SMALL)))
    out, err = capsys.readouterr()
    assert out == ""
    for rank in range(2):
        first, plan, wires = [line for line in err.splitlines() if line.startswith(f"optcc INFO rank {rank} of 2: ")]
        assert first.endswith("cluster of 4 NICs, 0 of them dead; here nic0 100Gb/s, nic1 100Gb/s; transport local")
        assert re.search(r": AllReduce up to 2MiB: [a-z-]+, 1 segment, plan [0-9a-f]{16}$", plan)
        assert re.search(rf": \d+ wires out, \d+ in; landing slots of \d+MiB; path of chunks: {path}$", wires)
    assert len(err.splitlines()) == 6


def test_it_says_nothing_unasked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OPTCC_DEBUG", "WARN")
    with Ranks(2) as ranks:
        ranks.good(lambda comm: comm.all_reduce(np.zeros(3)))
    assert capsys.readouterr() == ("", "")


def test_a_level_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTCC_DEBUG", "loud")
    errors = Ranks(2).errors
    assert len(errors) == 2
    for error in errors:
        assert str(error) == "OPTCC_DEBUG: no such level, expected WARN or INFO, got 'loud'"
