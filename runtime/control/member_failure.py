"""What a rank that commands itself does once something has failed: it tells the hub, hears who failed, and goes on."""

from __future__ import annotations

import select
import time
from collections.abc import Callable

from optcc.errors import InputError, OptccError
from optcc.runtime.control.channel import Control
from optcc.runtime.control.connecting import HubLostError
from optcc.runtime.control.failure_detector import GRACE_S
from optcc.runtime.control.links import Links
from optcc.runtime.control.rendezvous import Membership
from optcc.runtime.errors import CallsDifferError, PeerLateError, PeerLostError, RankFailedError, shortage
from optcc.runtime.messages import Broken, Late, Shrink

JUDGING_S = 10 * GRACE_S
"""For a hub that lives to judge, on a machine that is busy."""

HUB_GONE = "its process, which held the control channel, is gone"


def verdict(error: Exception, control: Control, links: Links, within_s: float) -> RankFailedError:
    """Who failed, as all ranks hear it: tells the overseer of `error` and waits for its word, `within_s` at most.

    Serves flows meanwhile, as `worker._await_verdict` does.
    """
    if isinstance(error, RankFailedError):
        return error
    try:
        if not isinstance(error, HubLostError):
            if isinstance(error, CallsDifferError):  # the hub says who, once enough ranks have told what they called
                _listen(control, within_s)
            late = isinstance(error, PeerLateError | CallsDifferError)  # also for rank 0, but for what judging takes
            _accuse(error, control)
            _listen(control, JUDGING_S + (0 if late else within_s), links if isinstance(error, PeerLostError) else None)
            cause = f"its process does not answer: it has not said who failed, within {within_s:.3g} s"
            return RankFailedError(0, cause)
    except RankFailedError as said:
        return said
    except HubLostError as lost:
        error = lost
    try:
        control.check()  # what was said before it was lost counts
    except RankFailedError as said:
        return said
    except HubLostError:
        pass
    return RankFailedError(0, HUB_GONE if control.rank else f"its own control channel has ended: {error}")


def _listen(control: Control, within_s: float, links: Links | None = None) -> None:
    """Hear what the hub says, and serve the flows of `links`, for so long; its verdict is raised."""
    end = time.monotonic() + within_s
    while (left := end - time.monotonic()) > 0:
        try:
            if links and links.up:
                links.poll(end)
            elif select.select([control], [], [], left)[0]:
                control.check()
        except PeerLostError:
            pass  # one is enough
        except (RankFailedError, HubLostError):
            raise
        except Exception:  # these flows are of no use any more
            links = None


def _accuse(error: Exception, control: Control) -> None:
    if isinstance(error, PeerLateError):
        control.tell(Late(error.blames, error.why))
        return
    if isinstance(error, CallsDifferError):
        control.tell(Late(error.peer, str(error)))
        return
    cause = str(error) if isinstance(error, OptccError) else shortage(error)
    blames = error.blames if isinstance(error, PeerLostError) else None
    control.tell(Broken(cause or f"{type(error).__name__}: {error}", blames))


def regroup(
    control: Control, old: Membership, look: Callable[[float], None], within_s: float
) -> tuple[Membership, list[int]]:
    """After a rank has failed: this rank's place among those that go on, and their old numbers. All call this.

    look : one wait up to a time of the monotonic clock, and what has come by then
    within_s : for all that live to say so, from when the first has
    Raises InputError where this rank is not among them, or nobody can bring them together.
    """
    hint = "Start the job again."
    lost: HubLostError | None = None
    try:
        look(time.monotonic())  # the others may have gone on already
        if control.regrouped is None:
            control.tell(Shrink(within_s))
        end = time.monotonic() + within_s + GRACE_S
        while control.regrouped is None and time.monotonic() < end:
            look(end)
    except HubLostError as error:
        lost = error
    regrouped = control.regrouped
    if regrouped is None:
        what = f"rank 0 has not brought the others together within {within_s:.3g} s"
        if lost:
            what = "the control channel is gone with rank 0's process, so nobody can bring the others together"
        raise InputError(what, where="shrink", hint=hint) from lost
    ranks = regrouped.ranks
    if old.rank not in ranks:
        gone_on = f"ranks {', '.join(map(str, ranks))} have gone on without it"
        hint = "Start the job again, or have them call grow and come in as a new rank."
        raise InputError(f"rank {old.rank} is not among those that go on: {gone_on}", where="shrink", hint=hint)
    address = (old.address[0], regrouped.port)
    return Membership(ranks.index(old.rank), len(ranks), address, f"{old.job}'", old.secret), ranks
