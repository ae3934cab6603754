"""What can go wrong while a schedule runs. A wrong result is not an error: it is reported as not exact."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import TYPE_CHECKING

from optcc.errors import OptccError

if TYPE_CHECKING:
    from optcc.runtime.messages import RankJournal


def shortage(error: Exception) -> str | None:
    """In words, what a process has run out of, descriptors or memory; None: of neither."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EMFILE:
        return "too few file descriptors: no more may be opened (ulimit -n)"
    if number == errno.ENFILE:
        return "too few file descriptors: the whole machine has no more (sysctl fs.file-max)"
    if number in (errno.ENOMEM, errno.ENOSPC) or isinstance(error, MemoryError):
        return f"too little memory: {error or 'no more could be had'}"
    return None


class TransportError(OptccError):
    """Bytes cannot be moved, or what arrived is not what the schedule says."""


class PeerLostError(TransportError):
    """The connection to rank `peer` ended in the middle of a collective. blames : who is at fault, None: this rank."""

    def __init__(self, peer: int, why: str) -> None:
        self.peer, self.why = peer, why
        self.blames: int | None = peer
        super().__init__(f"lost rank {peer}: {why}")


class PeerLateError(PeerLostError):
    """What rank `peer` was waited for has not come in time. None: there is no telling which rank that was."""

    def __init__(self, peer: int | None, why: str) -> None:
        super().__init__(-1 if peer is None else peer, why)
        self.blames = peer


class FlowSeveredError(PeerLostError):
    """No way is left from or to rank `peer`."""


class NicsLostError(FlowSeveredError):
    """No way is left to rank `peer` because the NICs of this rank are down."""

    def __init__(self, peer: int, why: str) -> None:
        super().__init__(peer, why)
        self.blames = None


class CallsDifferError(TransportError):
    """Rank `peer` has called something else than this rank, `behind` operations before the one that runs here."""

    def __init__(self, peer: int, behind: int = 0) -> None:
        self.peer, self.behind = peer, behind
        super().__init__(f"an operation is not the same call here and on rank {peer}: all ranks must call alike")


class RankFailedError(OptccError):
    """One rank failed, so the collective did on every rank; all of them raise this, with the same text.

    Attributes
    ----------
    rank : the rank that failed; cause : how
    seen_by : the text of the error as each surviving rank raised it (filled in by the parent process)
    journals : what the ranks that could still tell had noted of the collective, likewise
    at_s : when that was said, seconds of the hub's clock, likewise
    result : of a communicator's call, what this rank has where its result was to be: OLD, what was there before the
        call; NONE, neither that nor the result. A note of the error, which is printed with it, says so, too
    """

    OLD, NONE = "old", "none"
    result: str | None = None

    def __init__(
        self,
        rank: int,
        cause: str,
        seen_by: Mapping[int, str] | None = None,
        journals: Mapping[int, RankJournal] | None = None,
        at_s: float | None = None,
    ) -> None:
        self.rank, self.cause, self.at_s = rank, cause, at_s
        self.seen_by, self.journals = dict(seen_by or {}), dict(journals or {})
        left = cause.startswith(f"rank {rank} has ")  # it works as it should, and is no part of this any more
        super().__init__(cause if left else f"rank {rank} failed: {cause}")

    def of_call(self, result: str) -> RankFailedError:
        """The same as a call raises it, that leaves `result`."""
        error = RankFailedError(self.rank, self.cause)
        error.result = result
        holds = "is as it was before" if result == self.OLD else "holds no result, nor what it did before"
        error.add_note(f"the call's result buffer {holds}")
        return error


class GrowFailedError(OptccError):
    """No larger communicator has come about, on any rank; the old one goes on as it was. The same on all its ranks.

    rank : who has failed, by its number in the larger one; cause : how
    """

    def __init__(self, rank: int, cause: str, old: int, new: int) -> None:
        self.rank, self.cause = rank, cause
        super().__init__(
            f"cannot grow from {old} to {new} ranks: rank {rank} failed: {cause}; "
            f"the communicator of {old} ranks is as it was"
        )
