"""Where NICs come from: the lab's soft ones, this machine's, or else played ones (docs/fabric.md); and the network that
tests spoil, which only the lab and played NICs have. `tests/conftest.py` is not loaded in the lab.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from optcc.machine.rdma import NicAddress, rdma_ports
from tests import effort

VIRTUAL_TIME = os.environ.get("OPTCC_LAB") == "virtual"
"""Whether times may be asserted."""
PACKAGES = Path("/packages")
"""Where `lab/run.sh --packages` puts what the command line needs and the guest lacks."""


def addresses() -> list[NicAddress]:
    """Of all of the lab's NICs, or played ones, as they are now: a test may have changed some."""
    found = {port.device: port.address() for port in rdma_ports()}
    return [address for i in range(len(found)) if (address := found[f"rxe{i}"]) is not None]


def command_environment(**more: str) -> dict[str, str]:
    """Of processes that run the command line, or what needs as much."""
    return {**os.environ, "PYTHONPATH": f"{os.getcwd()}:{PACKAGES}", "COLUMNS": "200", **more}


needs_virtual_time = pytest.mark.skipif(
    not VIRTUAL_TIME, reason="asserts times, which only the lab's virtual clock makes exact (LAB=1 make test-verbs)"
)


def needs_package(name: str) -> pytest.MarkDecorator:
    """For tests that run, in the lab, what needs packages of the project's environment."""
    return pytest.mark.skipif(
        not (PACKAGES / name).exists() and ("OPTCC_LAB" in os.environ or importlib.util.find_spec(name) is None),
        reason=f"needs {name} of .venv (make setup torch)",
    )


PLAYED_NICS = 12
PLAYED_FILES = frozenset(
    f"test_{name}.py"
    for name in (
        "command",
        "communicator",
        "contract",
        "failover",
        "lab",
        "moments",
        "native_session",
        "native_wires",
        "own_nics",
        "torch",
    )
)
"""Files whose tests have been shown to run over played NICs on any machine. The others need the lab, or real NICs."""
NOT_PLAYED = {
    "test_an_address_that_changed_is_read_anew": "a kernel's table of GIDs keeps an address while somebody holds it",
}
"""Tests of these files that are about what is not played, and why."""
NOT_SOFT = {
    "test_a_local_key_of_nobody_is_an_error_after_what_came_before": "its status is LOC_QP_OP_ERR",
    "test_a_message_longer_than_its_receive_fails_at_both_ends": "the sender's status is REM_OP_ERR",
    "test_an_operand_that_is_not_aligned_is_refused": "the post is refused, not the request",
    "test_an_error_flushes_what_was_posted_both_ways_and_what_is_posted_then": "what is posted later is not flushed",
    "test_an_unreliable_connection_neither_reads_nor_adds": "its library takes such a post, and the request fails",
    "test_a_message_with_a_hole_is_dropped_whole": "the message that follows one with a hole does not come, either",
    "test_packets_that_are_lost_are_sent_again": "its counters do not tell of them",
    "test_an_operand_is_added_once_however_often_it_is_asked_for": "acknowledgements of atomics come through that loss",
}
"""Tests of the contract in which the lab's kernel, 6.1, is not by the book, or its faults are others."""
_PLAYED: dict[str, str] = {}
"""The environment that names this process' played NICs; empty before the first test, and where NICs are real."""


def _library() -> Path | None:
    """The folder of the played library, which is this process' libibverbs from here on; None where NICs are real."""
    if "OPTCC_LAB" in os.environ or any(Path("/sys/class/infiniband").glob("*")) or not shutil.which("cc"):
        return None
    from optcc.fabric.played import NAME, library

    built = os.environ.get("PLAYED_LIBRARY")  # of a test that is about the library: sanitizers, mutants
    folder = Path(built) if built else library()
    ctypes.CDLL(str(folder / NAME))  # whoever loads one by this name gets it, and nobody has yet
    return folder


_LIBRARY = _library()


def _play(library: Path) -> dict[str, str]:
    """A fabric of one host, whose NICs are called as the lab's; what the environment must say of it."""
    from optcc.fabric.played import PlayedFabric

    memory = Path("/dev/shm")
    parent = Path(tempfile.mkdtemp(prefix="optcc-verbs-", dir=memory if memory.is_dir() else None))
    fabric = PlayedFabric.make(parent / "fabric", hosts=1, nics=PLAYED_NICS, roce=True, name="rxe")
    paths = (str(library), os.environ.get("LD_LIBRARY_PATH", ""))
    return fabric.env(0) | {"OPTCC_LAB": "played", "LD_LIBRARY_PATH": ":".join(filter(None, paths))}


def pytest_configure(config: pytest.Config) -> None:
    """In the lab WHOLE=1 leaves nothing out (lab/test.sh), and random cases are an eighth of all in place of some."""
    if not hasattr(config.option, "whole") and not config.option.markexpr:
        effort.level = "long"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long in the lab takes long over played NICs, too."""
    for item in items if _LIBRARY else ():
        if item.get_closest_marker("whole"):
            item.add_marker(pytest.mark.long)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if not _PLAYED and _LIBRARY:
        _PLAYED.update(_play(_LIBRARY))
    if _LIBRARY and item.name in NOT_PLAYED:
        pytest.skip(f"not played: {NOT_PLAYED[item.name]} (LAB=1 make test-verbs)")
    if os.environ.get("OPTCC_LAB") == "virtual" and item.name in NOT_SOFT:
        pytest.skip(f"soft-RoCE: {NOT_SOFT[item.name]}")
    if item.path.name in PLAYED_FILES:
        os.environ.update(_PLAYED)


MOST_TRIES = 8
"""Of a test whose fault found nothing under way: here times are the machine's, and it may be busy."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Over played NICs a run that proves nothing is made again."""
    network = pyfuncitem.funcargs.get("network")
    if not _PLAYED or network is None:
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    for left in reversed(range(MOST_TRIES)):
        try:
            pyfuncitem.obj(**given)
        except Exception as error:
            if not left or type(error).__name__ != "InconclusiveError":
                raise
            network.whole()
        else:
            return True
    return None


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    for name in _PLAYED:
        os.environ.pop(name, None)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _PLAYED:
        shutil.rmtree(Path(_PLAYED["PLAYED_FABRIC"]).parent, ignore_errors=True)


@pytest.fixture
def network() -> Iterator[Any]:
    """The lab's network, or that of played NICs; whole again after the test."""
    if "OPTCC_LAB" not in os.environ:
        pytest.skip("cuts links and loses packets, which only soft NICs may suffer (LAB=1 make test-verbs)")
    if _PLAYED:
        from optcc.fabric.played import PlayedNetwork

        played = PlayedNetwork()
        yield played
        played.whole()
        return
    from lab import network as lab_network

    yield lab_network
    lab_network.whole()
