"""Jobs on the lab's NICs for the rig of the failover matrix: ranks are threads, wires are queue pairs."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from optcc.machine.rdma import NicAddress, rdma_ports
from optcc.runtime.verbs.settings import VerbsSettings
from optcc.runtime.wires.layout import Layout
from tests.verbs.ranks import Gather

PATIENT = VerbsSettings(timeout=20)
"""30 s until a NIC gives up by itself: whatever is faster has been noticed by other means."""


class Jobs:
    """Opens all ranks' wires of a job on NICs that no open job uses, whole and at the job's rates."""

    def __init__(self, network: ModuleType, settings: VerbsSettings = PATIENT) -> None:
        self._network, self._settings = network, settings
        # Weakly, so that what closed wires have left is the wires' doing, and not kept from here.
        self._open: list[tuple[range, list[weakref.ref[Any]]]] = []

    def __call__(self, layout: Layout, watches: Sequence[Any]) -> list[Any]:
        self._open = [(nics, ends) for nics, ends in self._open if any(map(_is_open, ends))]
        first = max((nics.stop for nics, _ in self._open), default=0)
        nics = range(first, first + len(layout.nics))
        if nics.stop > self._network.nics():
            pytest.fail(f"needs {nics.stop} NICs (NICS=12 make test-verbs)")  # the lab can have them
        self._network.whole(nics)
        for nic, rates in zip(nics, layout.rates, strict=True):
            self._network.rate(nic, 8 * max(rates.out, rates.into))
        ends = connect(layout, watches, first, self._settings)
        self._open.append((nics, [weakref.ref(end) for end in ends]))
        return ends


def _is_open(end: weakref.ref[Any]) -> bool:
    wires = end()
    return wires is not None and bool(wires._nics)


def connect(layout: Layout, watches: Sequence[Any], first: int, settings: VerbsSettings) -> list[Any]:
    """The ends of all ranks; the job's NIC i is the lab's NIC `first` + i."""
    from optcc.runtime.verbs.wires import VerbsWires

    class Registering(VerbsWires):
        """The rig gives every operation a new buffer and registers none."""

        def write(self, wire: int, flow: int, seq: int, header: bytes, payload: memoryview, ready: float) -> None:
            self.register(memoryview(payload.obj).cast("B"))
            super().write(wire, flow, seq, header, payload, ready)

    gather, found, failed = Gather(layout.ranks), addresses(), list[BaseException]()
    ends: dict[int, Registering] = {}

    def one(rank: int) -> None:
        mine = {i: found[first + i] for i, nic in enumerate(layout.nics) if nic.rank == rank}
        try:
            ends[rank] = Registering(
                rank,
                layout.wires,
                layout.flows,
                mine,
                exchange=gather.of(rank),
                watch=watches[rank],
                clock=time.monotonic,
                rates=layout.rates,
                settings=settings,
            )
        except BaseException as error:
            failed.append(error)
            gather.abort()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(layout.ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return [ends[rank] for rank in range(layout.ranks)]


def addresses() -> list[NicAddress]:
    """Of all of the lab's NICs, as they are now: a test may have changed some."""
    found = {port.device: port.address() for port in rdma_ports()}
    return [address for i in range(len(found)) if (address := found[f"rxe{i}"]) is not None]
