"""What a rank that commands itself does once something has failed: it tells the hub, hears who failed, and goes on."""

from __future__ import annotations

import select
import time
from collections.abc import Callable

from optcc.errors import InputError, OptccError
from optcc.runtime.control.channel import Control
from optcc.runtime.control.connecting import HubLostError
from optcc.runtime.control.links import Links
from optcc.runtime.control.overseer import REGROUP_S
from optcc.runtime.control.rendezvous import Membership
from optcc.runtime.errors import PeerLateError, PeerLostError, RankFailedError, shortage
from optcc.runtime.messages import Broken, Late, Shrink

VERDICT_S = 30.0
"""For the overseer to say who failed: more than `failure_detector.GRACE_S`, and than the kernel takes to find a
machine gone."""

HUB_GONE = "its process, which held the control channel, is gone"


def verdict(error: Exception, control: Control, links: Links) -> RankFailedError:
    """Who failed, as all ranks hear it: tells the overseer of `error` and waits for its word, VERDICT_S at most.

    Serves flows meanwhile, as `worker._await_verdict` does.
    """
    if isinstance(error, RankFailedError):
        return error
    try:
        if not isinstance(error, HubLostError):
            _accuse(error, control)
            serve, end = isinstance(error, PeerLostError), time.monotonic() + VERDICT_S
            while time.monotonic() < end:
                try:
                    if serve and links.up:
                        links.poll(end)
                    elif select.select([control], [], [], end - time.monotonic())[0]:
                        control.check()
                except PeerLostError:
                    pass  # one is enough
                except (RankFailedError, HubLostError):
                    raise
                except Exception:  # these flows are of no use any more
                    serve = False
    except RankFailedError as said:
        return said
    except HubLostError:
        pass
    return RankFailedError(0, HUB_GONE)


def _accuse(error: Exception, control: Control) -> None:
    if isinstance(error, PeerLateError):
        control.tell(Late(error.peer, error.why))
        return
    cause = str(error) if isinstance(error, OptccError) else shortage(error)
    blames = error.blames if isinstance(error, PeerLostError) else None
    control.tell(Broken(cause or f"{type(error).__name__}: {error}", blames))


def regroup(control: Control, old: Membership, look: Callable[[float], None]) -> tuple[Membership, list[int]]:
    """After a rank has failed: this rank's place among those that go on, and their old numbers. All call this.

    look : one wait up to a time of the monotonic clock, and what has come by then
    Raises InputError where this rank is not among them, or nobody can bring them together.
    """
    hint = "Start the job again."
    try:
        control.tell(Shrink())
        end = time.monotonic() + REGROUP_S + VERDICT_S
        while control.regrouped is None and time.monotonic() < end:
            look(end)
    except HubLostError as error:
        what = "the control channel is gone with rank 0's process, so nobody can bring the others together"
        raise InputError(what, where="shrink", hint=hint) from error
    regrouped = control.regrouped
    if regrouped is None or old.rank not in regrouped.ranks:
        raise InputError(f"rank {old.rank} is not among those that go on", where="shrink", hint=hint)
    ranks = regrouped.ranks
    address = (old.address[0], regrouped.port)
    return Membership(ranks.index(old.rank), len(ranks), address, f"{old.job}'", old.secret), ranks
