"""Ranks of one process on the lab's NICs: rank r of a job with G NICs each has rxe[r*G] to rxe[r*G + G - 1]."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import numpy as np
import pytest

from optcc.machine.rdma import rdma_ports
from optcc.runtime.verbs.settings import VerbsSettings
from optcc.runtime.wires.contract import FlowSpec, Wire
from tests.wires_contract import FLOWS, WIRES, Pipe

MEMORY_BYTES = 1 << 17


class Gather:
    """An exchange between threads."""

    def __init__(self, ranks: int) -> None:
        self._values: list[Any] = [None] * ranks
        self._barrier = threading.Barrier(ranks)

    def abort(self) -> None:
        """A rank has failed: nobody waits for it."""
        self._barrier.abort()

    def of(self, rank: int) -> Callable[[Any], list[Any]]:
        def exchange(value: Any) -> list[Any]:
            self._values[rank] = value
            self._barrier.wait()
            told = list(self._values)
            self._barrier.wait()
            return told

        return exchange


class Ranks:
    """All ranks' wires, to be driven by one thread."""

    def __init__(
        self,
        wires: Sequence[Wire] = WIRES,
        flows: Sequence[FlowSpec] = FLOWS,
        *,
        ranks: int = 2,
        nics: int = 2,
        missing: Sequence[int] = (),
        memory_bytes: int = MEMORY_BYTES,
        settings: VerbsSettings | None = None,
    ) -> None:
        from optcc.runtime.verbs.wires import VerbsWires

        found = [port for port in rdma_ports() if port.active or "OPTCC_LAB" in os.environ]
        if len(found) < ranks * nics:
            # The lab can have as many as it is asked for; a host has those that it has.
            lacking = pytest.fail if "OPTCC_LAB" in os.environ else pytest.skip
            lacking(f"needs {ranks * nics} RDMA ports with links, not {len(found)}")
        addresses = {i: port.address() for i, port in enumerate(found) if i not in missing}
        self.watches = [Pipe() for _ in range(ranks)]
        self.memory = [memoryview(mmap.mmap(-1, memory_bytes)) for _ in range(ranks)]
        gather = Gather(ranks)

        def join(rank: int) -> VerbsWires:
            mine = {i: addresses[rank * nics + i] for i in range(nics) if rank * nics + i in addresses}
            joined = VerbsWires(
                rank,
                wires,
                flows,
                {i: address for i, address in mine.items() if address is not None},
                exchange=gather.of(rank),
                watch=self.watches[rank],
                clock=time.monotonic,
                settings=settings,
            )
            steps = np.arange(memory_bytes, dtype=np.uint32)
            self.memory[rank][:] = ((steps * 7 + steps // 251 + rank) % 256).astype(np.uint8).tobytes()
            joined.register(self.memory[rank])
            return joined

        with ThreadPoolExecutor(ranks) as pool:
            self.ranks = list(pool.map(join, range(ranks)))

    def now(self) -> float:
        return time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for wires in self.ranks:
            wires.close()
        for watch in self.watches:
            watch.close()
