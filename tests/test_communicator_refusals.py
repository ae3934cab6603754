"""Calls and clusters that a communicator refuses, and that it goes on afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import optcc
from optcc.errors import InputError
from optcc.runtime.devices.host import Array
from tests.communicators import Ranks

WORLD = 3


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(WORLD) as ranks:
        yield ranks


class OnAnotherDevice:
    """As a Vulkan buffer shows itself by DLPack."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return (7, 0)

    def __dlpack__(self, **_: Any) -> Any:
        return np.zeros(3).__dlpack__()


def read_only() -> Array:
    x = np.zeros(3)
    x.flags.writeable = False
    return x


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: c.all_reduce(np.zeros((4, 4))[:, 1]), r"x: not contiguous, expected elements in C order .* copy"),
        (lambda c: c.all_reduce(np.zeros(3, complex)), "unknown dtype, expected one of int8"),
        (lambda c: c.all_reduce(read_only()), "x: read-only, .* an input where the result goes elsewhere"),
        (lambda c: c.all_reduce([1.0, 2.0]), "x: not an array"),
        (lambda c: c.all_reduce(OnAnotherDevice()), "x: wrong device, expected memory of a CUDA device or of the host"),
        (lambda c: c.all_reduce(np.zeros(3), "xor"), "unknown operation, expected one of sum, prod, min, max, avg"),
        (
            lambda c: c.all_reduce(np.zeros(3), out=np.zeros(4)),
            "out: .* expected 3 elements of float64, got 4 of float64",
        ),
        (lambda c: c.all_reduce(np.zeros(3), out=np.zeros(3, "i4")), "out: .* got 3 of int32"),
        (lambda c: c.broadcast(np.zeros(3), 3), "root: not a rank, expected 0 to 2, got 3"),
        (lambda c: c.all_gather(np.zeros(3), np.zeros(8)), "out: .* expected 9 elements"),
        (lambda c: c.reduce_scatter(np.zeros(8), np.zeros(3)), "x: .* expected 9 elements"),
        (lambda c: c.all_to_all(np.zeros(8), np.zeros(8)), "x: no equal parts, expected .* that 3 divides, got 8"),
        (lambda c: c.all_to_all(np.zeros(9), np.zeros(3)), "out: .* expected 9 elements"),
        (lambda c: c.all_to_all(*[np.zeros(9)] * 2), "out: the same memory as x"),
    ],
)
def test_bad_calls_are_refused_and_cost_nothing(ranks: Ranks, call: Any, words: str) -> None:
    for error in ranks.each(call):
        assert isinstance(error, InputError)
        with pytest.raises(InputError, match=words):
            raise error
    assert ranks.good(lambda comm: int(comm.all_reduce(np.array([1]))[0])) == [WORLD] * WORLD


def test_overlapping_buffers_are_refused(ranks: Ranks) -> None:
    x = np.zeros(10)
    with pytest.raises(InputError, match="out: input and output overlap"):
        ranks.comms[0].all_reduce(x[:6], out=x[2:8])


def test_clusters_that_differ_are_told_on_all_ranks() -> None:
    two = [optcc.Cluster.uniform(servers=2, nics=n, rate="1Gb/s") for n in (1, 2)]
    errors = Ranks(2, two).errors
    assert {str(error) for error in errors} == {
        "cluster: rank 1 was given another one than rank 0, expected the same on all ranks"
    }
    assert len(errors) == 2


def test_another_number_of_ranks_than_the_clusters() -> None:
    with pytest.raises(InputError, match="another number of ranks than processes, expected 1 ranks, got 4"):
        optcc.Communicator("uniform:servers=4,nics=1,rate=1Gb/s")
    with pytest.raises(InputError, match="no such transport"):
        optcc.Communicator(transport="carrier pigeon")
