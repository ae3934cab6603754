"""Messages of the failover protocol as JSON values, for whatever carries them between ranks."""

from __future__ import annotations

from typing import Any

from optcc.runtime.errors import TransportError
from optcc.runtime.protocol.events import Alive, Answer, Ask, FlowMessage, Notice, Probe, Refuse, Suspect
from optcc.runtime.wires.contract import Cause

_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Ask, Answer, Refuse, Probe, Alive, Notice, Suspect)}


def to_json(flow: int, message: FlowMessage) -> list[Any]:
    """[flow, kind, fields ...]"""
    return [flow, type(message).__name__, *message]


def from_json(value: Any) -> tuple[int, FlowMessage]:
    """(flow, message). Raises TransportError for anything that is not a message."""
    try:
        flow, name, *fields = value
        kind = _KINDS[name]
        if kind is Notice:
            fields[1] = Cause(fields[1])
        message = kind(*fields)
        if not all(isinstance(number, int) for number in (flow, *(f for f in message if not isinstance(f, Cause)))):
            raise TypeError("not a number")
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise TransportError(f"not a message: {value!r} ({error})") from None
    return flow, message
