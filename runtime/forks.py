"""What a forked child inherits and must not keep: descriptors by which others tell that this process lives.

A connection ends for its far end when the last process that has it has closed it. A child that kept one (of a data
loader, say) would let a process that has died look alive. And the child itself is nobody's rank: whatever it said over
such a connection would be taken for its parent's word. So it closes its copies at once, and nothing but them: it writes
to no memory that is shared, and takes no part in any conversation.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

Thing = TypeVar("Thing")

_owned: WeakKeyDictionary[Any, Callable[[Any], object]] = WeakKeyDictionary()


def own(thing: Thing, let_go: Callable[[Any], object] = lambda thing: thing.close()) -> Thing:
    """In a process that is forked from this one, ``let_go(thing)`` is called at once; returns `thing`.

    let_go : closes descriptors, which it does for the child alone; waits for nothing, for its parent's threads and the
        locks they hold are not there
    """
    _owned[thing] = let_go
    return thing


def _let_go() -> None:
    for thing, let_go in list(_owned.items()):
        with suppress(OSError, ValueError):  # closed already
            let_go(thing)
    _owned.clear()


os.register_at_fork(after_in_child=_let_go)
