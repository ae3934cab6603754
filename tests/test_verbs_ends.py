"""Making and closing wires over verbs where a device refuses: every rank hears the same error, and all is closed."""

from __future__ import annotations

import errno
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from typing import Any

import pytest

import optcc
from optcc.machine.rdma import NicAddress
from optcc.runtime.control import transports
from optcc.runtime.control.job import Assignment, Job
from optcc.runtime.control.runner import serve_child
from optcc.runtime.errors import RankFailedError, TransportError
from optcc.runtime.messages import RunFailed
from optcc.runtime.verbs import structs
from optcc.runtime.verbs.settings import VerbsSettings
from optcc.runtime.wires.contract import HEADER_BYTES, Cause, Failed, PortDown
from optcc.runtime.wires.pacing import Rates
from optcc.values.cluster import Cluster, Nic, Server
from tests.control_star import gather, opened
from tests.fake_verbs import FakeVerbs, library
from tests.wires_contract import FLOWS, WIRES, Pipe, joined

assert library  # a fixture

BOUND_S, RATE = 60.0, Fraction(10**9)
NICS = {rank: NicAddress(f"nic{rank}") for rank in range(2)}


Opens = Callable[..., Any]
"""(rank, exchange, what else `VerbsWires` is given)."""


@pytest.fixture
def opens(library: FakeVerbs) -> Iterator[Opens]:
    """Opens a rank's wires, with both its ports on the one device that it has."""
    from optcc.runtime.verbs.wires import VerbsWires

    watches = [Pipe(), Pipe()]

    def open_wires(rank: int, exchange: Callable[[Any], list[Any]], **given: Any) -> VerbsWires:
        nics = dict.fromkeys(range(2), NICS[rank])
        return VerbsWires(
            rank, WIRES, FLOWS, nics, exchange=exchange, watch=watches[rank], clock=time.monotonic, **given
        )

    yield open_wires
    for watch in watches:
        watch.close()


def served() -> list[Any]:
    """What two ranks report that are served as processes are, but by threads of this one."""
    servers = [Server(f"server{rank}", (Nic(f"nic{rank}", RATE, RATE),), 1) for rank in range(2)]
    schedule = optcc.plan(Cluster(tuple(servers)), 4096, segments=2).schedule()
    job = Job({"it": schedule}, "float32", "sum", paced=False, transport="verbs", path="python")
    with opened(2, None) as hub:
        threads = []
        for rank in range(2):
            with hub.attach(rank) as end:
                threads.append(threading.Thread(target=serve_child, args=(os.dup(end.fileno()), rank, 2)))
            threads[-1].start()
        gather(hub, BOUND_S)
        hub.ship(Assignment(job, (), BOUND_S).to_bytes())
        try:
            reports: list[Any] = []
            while len(reports) < 2:
                news = hub.news.get(timeout=BOUND_S)
                if isinstance(news, RunFailed):
                    raise hub.last_words()
                reports.append(news)
            return sorted(reports)
        finally:
            hub.ship(b"")
            for thread in threads:
                thread.join(BOUND_S)
            assert not any(thread.is_alive() for thread in threads)


@pytest.fixture
def devices(library: FakeVerbs, monkeypatch: pytest.MonkeyPatch) -> FakeVerbs:
    """NICs of the job that `served` runs, by a fake device for each rank."""
    found = {f"nic{nic}": NicAddress(f"nic{nic}") for nic in range(2)}
    monkeypatch.setattr(transports, "_devices", lambda: found)
    return library


def test_ranks_connect_and_leave_nothing_open(devices: FakeVerbs, capfd: pytest.CaptureFixture[str]) -> None:
    """The control of the tests below: without a fault, the same ranks reply."""
    assert served() == [(0, None), (1, None)]
    assert {device for name, device in devices.calls if name == "ibv_create_qp"} == {"nic0", "nic1"}
    assert devices.open == []
    assert capfd.readouterr().err == ""


def test_queue_pairs_are_given_what_each_state_needs(devices: FakeVerbs) -> None:
    """The bits of enum ibv_qp_attr_mask that the InfiniBand specification asks for, of a reliable connection."""
    assert served() == [(0, None), (1, None)]
    init = 0b11_1001  # state, access, pkey index, port
    ready_to_receive = 1 << 20 | 1 << 17 | 1 << 15 | 1 << 12 | 1 << 8 | 1 << 7 | 1
    ready_to_send = 1 << 16 | 1 << 13 | 1 << 11 | 1 << 10 | 1 << 9 | 1
    assert devices.masks == {1: {init}, 2: {ready_to_receive}, 3: {ready_to_send}}


@pytest.mark.parametrize("call", ["ibv_create_qp", "ibv_modify_qp"])
def test_an_end_that_cannot_be_made_stops_all_ranks_by_one_error(
    devices: FakeVerbs, capfd: pytest.CaptureFixture[str], call: str
) -> None:
    devices.fails[call, "nic1"] = errno.ENOMEM
    with pytest.raises(RankFailedError) as error:
        served()
    found = error.value
    assert (found.rank, found.seen_by) == (1, {0: str(found), 1: str(found)}), "which is what every rank has raised"
    for part in ("on nic1", f"{call}: Cannot allocate memory", "asks for ", "max_qp_wr", "ulimit -l"):
        assert part in str(found)
    assert devices.open == []
    assert capfd.readouterr().err == "", "and no traceback"


def test_a_nic_that_cannot_be_opened_is_lost_and_stops_nobody(devices: FakeVerbs) -> None:
    devices.fails["ibv_alloc_pd", "nic1"] = errno.ENODEV
    assert served() == [(0, None), (1, None)]
    assert devices.open == []


def test_an_end_that_cannot_be_made_is_a_transport_error_of_the_wires(library: FakeVerbs, opens: Opens) -> None:
    library.fails["ibv_create_qp", "nic0"] = errno.EINVAL
    with pytest.raises(TransportError, match=r"^wire 0 from rank 0 to rank 1 gets no queue pair on nic0: .*Invalid"):
        opens(0, lambda value: [value])
    assert library.open == []


# --- a device that is asked what has happened ------------------------------------------------------------------------


@pytest.mark.parametrize("answers", [True, False])
def test_a_device_that_does_not_answer_is_lost_with_its_wires(library: FakeVerbs, opens: Opens, answers: bool) -> None:
    ranks = joined(2, opens)
    library.events = [structs.EVENT_QP_FATAL]
    if not answers:
        library.fails["ibv_query_qp", "nic0"] = errno.EIO
    seen = ranks[0].poll(-math.inf)
    assert seen == []
    ranks[0]._reports.hear(ranks[0]._nics[0])
    seen = ranks[0].poll(-math.inf)
    lost = [(type(it), it.cause) for it in seen]
    cause = Cause.ERROR if answers else Cause.DEVICE
    assert set(lost) == {(Failed, cause)} | (set() if answers else {(PortDown, cause)})
    assert all("nic0 does not answer: ibv_query_qp: Input/output error" in it.detail for it in seen if not answers)
    for wires in ranks:
        wires.close()


# --- when a NIC takes more ------------------------------------------------------------------------------------------


def test_wires_wait_for_the_nic_by_which_they_leave_whatever_is_under_way_on_them(
    library: FakeVerbs, opens: Opens
) -> None:
    """WIRES 0 and 1 leave by one NIC, 2 and 3 by the other."""
    ranks = joined(2, partial(opens, rates=[Rates(1e6, 1e6)] * 2, settings=VerbsSettings(ahead=1)))
    memory = memoryview(bytearray(10_000))
    ranks[0].register(memory)
    now = time.monotonic()
    assert all(ranks[0].free_at(wire, now) <= now for wire in range(4))
    ranks[0].write(0, 0, 0, bytes(HEADER_BYTES), memory, now)
    assert ranks[0].free_at(0, now) == math.inf, "it has as many chunks as it may"
    assert now + 0.01 < ranks[0].free_at(1, now) < now + 0.011, "by its rate; others' dead wires do not count"
    assert ranks[0].free_at(3, now) <= now
    for wires in ranks:
        wires.close()


# --- closing --------------------------------------------------------------------------------------------------------


@pytest.fixture
def nic(library: FakeVerbs) -> Any:
    from optcc.runtime.verbs.nic import VerbsNic

    return VerbsNic(0, NICS[0], 16, 4096, 4096)


def test_a_nic_closes_all_of_it_and_then_says_what_it_could_not(library: FakeVerbs, nic: Any) -> None:
    """Its memory stays registered, so that its domain cannot go either; all else goes, the device itself too."""
    before = len(library.calls)
    library.fails["ibv_dereg_mr", "nic0"] = errno.EINVAL
    with pytest.raises(TransportError) as error:
        nic.close()
    assert str(error.value) == (
        "nic0 not closed: ibv_dereg_mr: Invalid argument; ibv_dealloc_pd: Device or resource busy"
    )
    closing = ["dereg_mr", "destroy_cq", "destroy_comp_channel", "dealloc_pd", "close_device"]
    assert library.calls[before:] == [(f"ibv_{name}", "nic0") for name in closing]
    nic.close()
    assert len(library.calls) == before + len(closing), "nothing is closed twice"


def test_a_nic_that_works_closes_without_a_word(library: FakeVerbs, nic: Any) -> None:
    nic.close()
    assert library.open == []


def test_what_stops_a_nic_from_opening_is_told_although_it_does_not_close_either(library: FakeVerbs) -> None:
    from optcc.runtime.verbs.nic import VerbsNic

    library.fails["ibv_reg_mr", "nic0"] = errno.ENOMEM
    library.fails["ibv_destroy_cq", "nic0"] = errno.EIO
    with pytest.raises(TransportError) as error:
        VerbsNic(0, NICS[0], 16, 4096, 4096)
    assert str(error.value) == "ibv_reg_mr: Cannot allocate memory"
    assert error.value.__notes__ == [
        "nic0 not closed: ibv_destroy_cq: Input/output error; ibv_destroy_comp_channel: Device or resource busy"
    ]


@pytest.mark.parametrize("fails", [False, True])
def test_wires_close_all_of_it_and_log_what_they_could_not(
    library: FakeVerbs, opens: Opens, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    ranks = joined(2, opens)
    if fails:
        library.fails["ibv_destroy_qp", "nic0"] = errno.EIO
    with caplog.at_level(logging.WARNING):
        for wires in ranks:
            wires.close()
            wires.close()
    pairs = sum(call == ("ibv_destroy_qp", "nic0") for call in library.calls)
    assert pairs == len(WIRES), "each once, whatever became of the others"
    assert {("ibv_close_device", f"nic{rank}") for rank in range(2)} <= set(library.calls)
    assert [record.getMessage().partition(": wire")[0] for record in caplog.records] == (
        ["rank 0: queue pairs and NICs not closed"] if fails else []
    )
    assert "nic1" not in library.open
