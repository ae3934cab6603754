"""The process of one rank on the machine of its parent: ``python child.py FD RANK WORLD``.

FD is an inherited socket of which the parent has the other end, see `Overseer.attach`. The process ends at once when
the parent does, however that ends. This holds during the first imports, too: so nothing of optcc is imported before.
"""

from __future__ import annotations

import os
import select
import sys
import threading


def end_with_parent(fd: int) -> None:
    """Wait until nobody has the other end of `fd` any more, then end this process, whatever it is doing."""
    poll = select.poll()
    poll.register(fd, 0)  # a hang-up is always told; what can be read is somebody else's
    while not any(event & select.POLLHUP for _, event in poll.poll()):
        pass
    os._exit(1)


if __name__ == "__main__":
    fd, rank, world = map(int, sys.argv[1:])
    threading.Thread(target=end_with_parent, args=(os.dup(fd),), name="parent watch", daemon=True).start()
    from optcc.runtime.control.runner import serve_child

    sys.exit(serve_child(fd, rank, world))
