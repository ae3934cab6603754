"""What can be set about queue pairs."""

from __future__ import annotations

from dataclasses import dataclass

from optcc.errors import InputError


@dataclass(frozen=True)
class VerbsSettings:
    """How patient queue pairs are.

    timeout : a packet is sent again when no acknowledgement has come for 4.096 us x 2^timeout. It must exceed the time
        that everything posted on a NIC takes at the NIC's rate; 16 is 0.27 s.
    retries : so often, then the write fails; (retries + 1) timeouts after the last sign of life. Soft-RoCE takes 7 to
        mean for ever, other devices do not.
    hops : routers that packets may pass
    reads : record reads that a queue pair may have under way
    ahead : chunks that a NIC may have; more are not given to it before one is acknowledged
    signals : a queue pair asks for one completion in so many requests, or in half its queue if that is less. 8 saves
        seven of eight; more would save little, and keep what has landed unknown for longer
    early_s : a NIC is given its next chunk at most so many seconds before it will be idle, by its rate: what waking up
        takes, and less where it is seen to take less
    """

    timeout: int = 16
    retries: int = 6
    hops: int = 64
    reads: int = 4
    ahead: int = 64
    signals: int = 8
    early_s: float = 50e-6

    def __post_init__(self) -> None:
        for name, low, high in (
            ("timeout", 1, 31),
            ("retries", 0, 6),
            ("hops", 1, 255),
            ("reads", 1, 16),
            ("ahead", 1, 1024),
            ("signals", 1, 1024),
        ):
            if not low <= getattr(self, name) <= high:
                raise InputError(
                    "out of range", where=f"verbs {name}", expected=f"{low} to {high}", got=getattr(self, name)
                )

    @property
    def gives_up_after_s(self) -> float:
        """Seconds from the last sign of life to the error completion of a write to a dead end."""
        return float((self.retries + 1) * 4.096e-6 * 2**self.timeout)
