"""Ends of queue pairs made anew, one wire at a time, while the others go on: see `Abilities.renew` and `join`."""

from __future__ import annotations

import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from optcc.runtime.errors import TransportError
from optcc.runtime.verbs.binding import VerbsError
from optcc.runtime.verbs.end import DRAINED, FRESH, OPEN, End
from optcc.runtime.verbs.layout import depth, receives
from optcc.runtime.verbs.meeting import PACKETS, own_port
from optcc.runtime.verbs.nic import VerbsNic
from optcc.runtime.verbs.queue_pair import Endpoint
from optcc.runtime.verbs.reports import NicReports
from optcc.runtime.verbs.settings import VerbsSettings
from optcc.runtime.wires.contract import FlowSpec, Wire

log = logging.getLogger(__name__)


class VerbsRenewing(ABC):
    """The part of `VerbsWires` that does it. `remade` : how many have been."""

    _rank: int
    _wires: Sequence[Wire]
    _flows: Sequence[FlowSpec]
    _settings: VerbsSettings
    _base: int
    _nics: Mapping[int, VerbsNic]
    _ends: dict[int, End]
    _reports: NicReports
    remade: int

    def renew(self, wire: int) -> list[Any] | None:
        """See `Abilities`."""
        nic = self._nics.get(own_port(self._rank, self._wires[wire]))
        if nic is None or nic.index in self._reports.gone:
            return None
        end = self._ends.get(wire)
        try:
            if not nic.refresh():
                return None
            if end is None or end.state is not FRESH:
                end = self._made(wire, nic, end)
        except VerbsError as why:
            log.info("rank %d: no queue pair for wire %d: %s", self._rank, wire, why)
            return None
        return [self._base, nic.memory.rkey, *end.endpoint]

    def join(self, wire: int, told: Any) -> bool:
        """See `Abilities`. Raises TransportError for what no `renew` has given."""
        try:
            base, key, number, first, gid, lid, mtu = told
        except (TypeError, ValueError) as error:
            raise TransportError(f"not an end of a wire: {told!r}") from error
        end = self._ends[wire]
        if end.state is not FRESH:
            return False
        try:
            if not end.nic.is_active():
                return False
            end.connect(Endpoint(number, first, gid, lid, mtu), (base, key), self._settings)
        except VerbsError as why:
            log.info("rank %d: wire %d cannot be connected again: %s", self._rank, wire, why)
            return False
        end.state = OPEN
        self.remade += 1
        return True

    def _made(self, wire: int, nic: VerbsNic, old: End | None) -> End:
        """A new end in the place of an old one, which is drained."""
        if old is not None:
            assert old.state is DRAINED
            self._reports.forget(old)
            old.close()
        sends = 2 * depth(wire, self._flows)
        come, first = receives(wire, self._flows), secrets.randbelow(PACKETS)
        end = End(wire, nic, sends, come, first, self._settings)
        end.state = FRESH
        self._adopt(end)
        self._reports.learn(end)
        return end

    @abstractmethod
    def _adopt(self, end: End) -> None:
        """The end of its wire from now on."""
