"""What both ends of a flow are: machines driven by one table, (state, event) -> method. A pair it lacks is a bug."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

from optcc.runtime.errors import TransportError
from optcc.runtime.protocol.events import Command, Event

Commands = tuple[Command, ...]
"""What is to be done, in this order."""


class ProtocolError(TransportError):
    """An end of a flow was told what cannot be: a bug here, in the transport or at the far end, not a lost NIC."""


class Rule(NamedTuple):
    """What a machine does about an event in a state, and the states in which it may be afterwards."""

    does: Callable[..., Commands]
    to: tuple[StrEnum, ...]


Table = Mapping[tuple[StrEnum, type], Rule]


class Row(NamedTuple):
    """One line of a table, for several states and events; `to` empty: the state stays."""

    states: tuple[StrEnum, ...]
    events: tuple[type, ...]
    does: Callable[..., Commands]
    to: tuple[StrEnum, ...] = ()


def table(rows: Iterable[Row]) -> Table:
    """The rules of `rows`. Raises ValueError for a pair that two rows claim."""
    rules: dict[tuple[StrEnum, type], Rule] = {}
    for row in rows:
        for state in row.states:
            for event in row.events:
                if (state, event) in rules:
                    raise ValueError(f"two rules for {event.__name__} in {state}")
                rules[state, event] = Rule(row.does, row.to or (state,))
    return rules


class Machine:
    """Keeps a state and follows its class's table. No clock, no input or output, no threads, no chance."""

    __slots__ = ("_on", "state")

    TABLE: ClassVar[Table] = {}
    _RULES: ClassVar[dict[StrEnum, dict[type, Callable[..., Commands]]]] = {}

    def __init_subclass__(cls) -> None:
        cls.learn(cls.TABLE)

    @classmethod
    def learn(cls, rules: Table) -> None:
        """Take `rules` as the table; per state, because a look-up with one key is what every chunk pays for."""
        cls.TABLE, cls._RULES = rules, {}
        for (state, event), rule in rules.items():
            cls._RULES.setdefault(state, {})[event] = getattr(cls, rule.does.__name__)

    def __init__(self, state: StrEnum) -> None:
        self._go(state)

    def _go(self, state: Any) -> None:
        self.state = state
        self._on = self._RULES[state]

    def handle(self, event: Event) -> Commands:
        """Take note of `event`, tell what to do about it. Raises ProtocolError for what must not happen."""
        does = self._on.get(type(event))
        if does is None:
            raise ProtocolError(f"{type(self).__name__} in state {self.state!s}: {event} cannot be")
        return does(self, event)
