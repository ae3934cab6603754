"""A rank's conversation with the hub: let in, served command by command, and ended in order or by a failure."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import traceback
from collections.abc import Callable
from typing import NoReturn

from optcc.errors import InputError, OptccError
from optcc.runtime.compiled.choice import ChunkPath, warm
from optcc.runtime.control.channel import Control
from optcc.runtime.control.connecting import HubLostError
from optcc.runtime.control.rendezvous import Membership
from optcc.runtime.control.transports import this_machine
from optcc.runtime.control.worker import Worker
from optcc.runtime.errors import PeerLostError, RankFailedError, shortage
from optcc.runtime.messages import (
    Broken,
    Check,
    Enlist,
    Go,
    Prepare,
    Quit,
    Reply,
    Saw,
    Told,
    TurnAway,
)

log = logging.getLogger(__name__)

PR_SET_TIMERSLACK = 29
"""Linux' prctl(2)."""

JOIN_S = 60.0
"""To find a hub that may start later than this rank, and be let in."""


def _serve(worker: Worker, control: Control) -> InputError | None:
    """Do what the hub says, up to the end: in order, or because the job is refused, and why."""
    while True:
        match worker.command():
            case Enlist() as enlisted:
                worker.adopt(enlisted)
                control.tell(Reply())
            case Prepare() as order:
                worker.prepare(order)
                control.tell(Reply())
            case Go(at):
                control.tell(Reply(worker.run(at)))
            case Check():
                control.tell(Reply(worker.check()))
            case Quit():
                return None
            case TurnAway(what, where, expected, got, hint):
                return InputError(what, where=where, expected=expected, got=got, hint=hint)


def _await_verdict(worker: Worker, control: Control, error: Exception) -> NoReturn:
    """Raises it, as on every other rank.

    A rank that has lost a peer serves its flows meanwhile. Others may be about to accuse this rank, and must hear that
    it is alive. Else its word would be the only one, when its own NICs have swallowed all.
    """
    try:
        while isinstance(error, PeerLostError):
            with contextlib.suppress(PeerLostError):  # one is enough
                worker.command()
    except (RankFailedError, HubLostError):
        raise
    except Exception as broken:  # these flows are of no use any more
        log.info("no longer served after %s: %s", error, broken)
    while True:
        control.command()


def _be_punctual() -> None:
    """Let the kernel end waits on time: by default it may be 50 us late, the time of a chunk (Linux; else nothing)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


def serve_rank(
    membership: Membership,
    path: ChunkPath,
    within_s: float = JOIN_S,
    say: Callable[[str], object] = lambda text: None,
) -> int:
    """Join the hub and do what it says. Exit status 0 after an orderly end, 1 after a failed run.

    path : of chunks, by `path_of`: compiled code is made ready before anybody waits for this rank
    say : called with why the run has failed: no parent speaks for this process

    Raises RefusedError and HubLostError when the rank is not let in, InputError on all ranks where they were told
    different things.
    """
    warm(path)
    control = Control.join(
        membership.address,
        job=membership.job,
        secret=membership.secret.encode(),
        rank=membership.rank,
        world=membership.world,
        within_s=within_s,
    )
    control.tell(Told(membership.terms, this_machine(), membership.wrong))
    return _serve_until_the_end(control, say)


def serve_child(fd: int, rank: int, world: int) -> int:
    """Serve over an inherited socket, whose other end the parent's hub has. Exit status as `serve_rank`'s."""
    try:
        control = Control.inherited(fd, rank, world)
    except HubLostError:  # the parent is gone: nobody is left to tell
        return 1
    try:
        return _serve_until_the_end(control, lambda text: None)
    except InputError:  # the parent has found it
        return 2


def _serve_until_the_end(control: Control, say: Callable[[str], object]) -> int:
    _be_punctual()
    with control:
        worker = Worker(control)
        try:
            try:
                refused = _serve(worker, control)
                if refused is None:
                    return 0
            except (RankFailedError, HubLostError):
                raise
            except Exception as error:
                cause = str(error) if isinstance(error, OptccError) else shortage(error)
                if cause is None:
                    traceback.print_exc()
                    cause = f"{type(error).__name__}: {error}"
                control.tell(worker.journal())
                control.tell(Broken(cause, blames=error.blames if isinstance(error, PeerLostError) else None))
                _await_verdict(worker, control, error)
        except RankFailedError as verdict:
            say(str(verdict))
            with contextlib.suppress(HubLostError):
                control.tell(worker.journal())
                control.tell(Saw(str(verdict)))
                control.hang_up()
        except HubLostError as error:
            say(str(error))
        else:
            raise refused
        finally:
            worker.close()
    return 1
