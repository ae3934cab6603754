"""How the ranks of one machine connect their wires: over sockets, with the receiver's slots lent along."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import struct
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

from optcc.runtime.errors import TransportError
from optcc.runtime.local_ends import In, Out
from optcc.runtime.slots import Slots
from optcc.runtime.wires import Wire

HELLO = Struct("<32sI")
"""The listener's token, which wire."""
CONNECT_S = 10.0
"""For all connections of a rank to stand. They go to this machine, so only a peer that died makes it wait."""


def connect_ends(
    rank: int,
    wires: Sequence[Wire],
    exchange: Callable[[Any], list[Any]],
    lent: Slots,
    borrow: Callable[[int, int], Slots],
    adopt: Callable[[Out | In], None],
    clock: Callable[[], float],
) -> None:
    """Give `adopt` every end of this rank's as soon as it stands; it is the one to close them.

    The receiving end of a wire connects, for it lends its slots with the first bytes that it sends.

    exchange : an all-gather over the ranks; borrow : the slots of a rank by the descriptor that it lends
    Raises TransportError when ranks do not connect in time.
    """
    entering = [w for w, wire in enumerate(wires) if wire.dst == rank]
    leaving = {w for w, wire in enumerate(wires) if wire.src == rank}
    token = secrets.token_bytes(32)
    deadline = clock() + CONNECT_S
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")  # Linux finds a name, which is not a file
        listener.listen(max(1, len(leaving)))
        listeners = exchange([listener.getsockname().hex(), token.hex()])
        for w in entering:
            name, theirs = listeners[wires[w].src]
            with contextlib.ExitStack() as failed:
                sock = failed.enter_context(socket.socket(socket.AF_UNIX))
                sock.connect(bytes.fromhex(name))
                socket.send_fds(sock, [HELLO.pack(bytes.fromhex(theirs), w)], [lent.fd])
                failed.pop_all()
                adopt(In(w, sock))
        while leaving:
            listener.settimeout(max(0.001, deadline - clock()))
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                missing = {wires[w].dst for w in leaving}
                raise TransportError(f"ranks {sorted(missing)} did not connect within {CONNECT_S:g} s") from None
            with contextlib.ExitStack() as refuse:
                refuse.callback(sock.close)
                sock.settimeout(1.0)
                with contextlib.suppress(OSError, struct.error):
                    hello, fds, _, _ = socket.recv_fds(sock, HELLO.size, 1)
                    for fd in fds:
                        refuse.callback(os.close, fd)
                    shown, w = HELLO.unpack(hello)
                    if hmac.compare_digest(shown, token) and w in leaving and fds:
                        refuse.pop_all()
                        leaving.remove(w)
                        adopt(Out(w, sock, borrow(wires[w].dst, fds[0])))
        exchange(None)  # nobody writes before all are connected, nor closes its listener before
