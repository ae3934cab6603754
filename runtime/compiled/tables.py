"""What the compiled loop works on: arrays of records, by name. `loop` says what it does with them.

`program_tables`, `flow_table` and `line_table` fill them.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Records = NDArray[Any]


def _record(ints: str, floats: str = "") -> np.dtype[Any]:
    """A record of whole numbers and of times or rates."""
    return np.dtype([*((name, np.int64) for name in ints.split()), *((name, np.float64) for name in floats.split())])


def stamp_of(folder: Path) -> str:
    """A name that differs where a source in the folder does."""
    return f"of_{crc32(b''.join(path.read_bytes() for path in sorted(folder.glob('*.py')))):08x}"


ROW = _record("row count offset length source route kind missing expected reduce released_at after_at parked", "since")
"""A transfer, in order of rows; its index is its place. count : of what a sent one waits for, or a received one awaits;
since : as the engine's, NaN where there is none; source : address of a sent one's payload; route, kind : numbers of its
route and of its stripes; missing : bytes still to come; expected, reduce : 0 or 1; released_at, after_at : where its
part of the lists `released` and `after` begins; parked : 1 + the last of its chunks in `Flows.parked`, 0: none."""
ROUTE = _record("queue_at timed rowed lane_at watched")
"""A route that this rank sends by: where its queues and its lanes begin, the sizes of its two heaps; watched : 0 while
its lanes are not."""
QUEUE = _record("place", "since")
"""An entry of the heaps of `ReadyQueue`, of places instead of rows: those by time of all routes, then those by row."""
STRIPE = _record("flow start stop")
STAMP = stamp_of(Path(__file__).parent)
"""The stamp of this package. As a field's name it is part of every signature. The cache of numba compares signatures
and the date of one file, where the function is: a change in another file would go unnoticed."""
STACK = _record(f"place {STAMP}", "at")
"""Landings that finish others; the last whole number is not used."""


class FlowState(NamedTuple):
    """The part of a FLOW that compiled code changes or Python fills anew; the record begins with it.

    out, into : 1 where it leaves or enters here, and is in its steady state on a wire that works
    wire, epoch, posted, acked, folded, landed, returned : the machine's; a receiver's `folded` is `landed`
    queued : the place of the transfer that is being cut into chunks, -1: none
    start, stop : what is left of that
    numbered : bytes posted since the machines were asked
    parked : how many chunks wait in their slots until it is their turn to be folded
    call, asked : the chunk whose landing the far sender, this rank's sender wants to be told, -1: none
    place : among the flows of its wire, over queue pairs
    """

    out: int = 0
    into: int = 0
    wire: int = 0
    epoch: int = 0
    posted: int = 0
    acked: int = 0
    folded: int = 0
    landed: int = 0
    returned: int = 0
    queued: int = -1
    start: int = 0
    stop: int = 0
    numbered: int = 0
    parked: int = 0
    call: int = -1
    asked: int = -1
    place: int = 0


FLOW_STATE = Struct(f"{len(FlowState._fields)}q")
FLOW = _record(
    f"{' '.join(FlowState._fields)} window most size every slots payloads stride mark kept_at keeps "
    "far far_bytes withdrawn",
    "ready",
)
"""A flow. window, every : as the machine's; most : bytes of payload of a chunk; size : of a slot; slots, mark :
addresses of its first slot and of the word that says what has landed; payloads, stride : address of the payload of the
first slot, and bytes from there to the next one's; kept_at : where its part of `kept` or `parked` begins; keeps : how
many of `kept` an outgoing one has; far, far_bytes : address and size of its sender's buffer, where that is lent;
withdrawn : address of the word that ends that; ready : since when that which is queued can go."""
KEPT = _record("place start bytes", "ready")
"""A chunk that may have to be sent again: of those that a flow keeps, the one with number ``seq % keeps``."""
PARKED = _record("flow seq offset bytes next")
"""A chunk that waits for its turn in slot ``seq % window`` of a flow. offset : in the buffer; next : 1 + the place of
another one of the same transfer, 0: none."""
WIRE = _record("out into closed out_nic in_nic socket woke sleep ring")
"""A wire. out, into : 1 where its sending, its receiving end here works; closed : address of the word that closes it;
socket : descriptor; woke : the sleep of the peer for which compiled code has woken it; sleep : address of the word in
which the peer says that it sleeps; ring : that what is said at this end goes into."""
RING = _record("written_at taken_at records count written taken")
"""A ring: addresses of its two counts and of its records, how many it holds, both counts as far as this end knows."""
NIC = _record("under_way", "out_free in_free out_rate in_rate")
"""Of any rank. under_way : over queue pairs, chunks that it was given and that are not known to be done; the rest as of
`PortClocks`, over queue pairs of `Backlog`."""
WAY = _record("order nic flow seq bytes wire", "at")
"""A chunk on its way between emulated NICs. at : when it can be served or lands."""

KERNEL = _record("w16 w8 w0 item")
"""Handles of a GPU's kernel by the width of its words; bytes of an element."""
COPYING = _record("ticket wire flow seq bytes", "start end")
"""A chunk that a GPU copies into its slot: what its notification says, which goes when the ticket is done."""
OWED = _record("ticket wire flow folded")
"""A credit that may go when the ticket is done."""

END = _record(
    "nic pair sends every works_at users_at users base key chain receives headers header_key payload_key "
    "first last told chained came under_way refused"
)
"""The queue pair of a wire, see `verbs.end`.

nic : of this rank; pair, chain, receives, headers : addresses of the queue pair, of its requests and of the places for
headers; sends : requests that may be under way; every : one in so many asks for a completion; works_at, users_at :
where its parts of `works` and of `users` begin; users : how long that is; base, key : of the far end's memory;
header_key, payload_key : of this rank's.

first : the number of the oldest request that is not known to be done; last : of the one posted last; told : of the last
one that asks for a completion; chained : how many wait; came : receives to be posted again; under_way : chunks among
the requests; refused : the error with which the device has refused work."""
WORK = _record("flow seq")
"""A request under way, as of `PostedWork`: of a queue pair's `sends`, the one with number ``number % sends``."""
DEVICE = _record("queue channel poll notify post_send post_receive polled found at armed")
"""A NIC of this rank, see `verbs.nic`: addresses of its completion queue and channel, of its own functions, of the
buffer of completions; found, at : how many are in that, and the next to be read; armed : whether an event comes."""


class RowTables(NamedTuple):
    """What the engine knows. kinds : where the stripes of a kind of transfer begin; lanes : flows that may carry
    something, by route; released, after : places; stack : for landings that finish others; places : by row, -1: not
    this rank's."""

    rows: Records
    routes: Records
    queues: Records
    stripes: Records
    kinds: Ints
    lanes: Ints
    released: Ints
    after: Ints
    stack: Records
    places: Ints


class Flows(NamedTuple):
    """By number of the flow; of flows that are not this rank's, nothing. mine : the outgoing ones."""

    flows: Records
    kept: Records
    parked: Records
    mine: Ints


class Lines(NamedTuple):
    """Local wires. notices, backs : the rings to read; words : addresses of those in which this rank says that
    it sleeps; polls : struct pollfd, the wires' epoll first, then the watch and all sockets; held, through : heaps of
    chunks on their way, `unused` : a stack of records for such; scratch : for calls of libc.

    Of payloads in a GPU's memory: kernels : that copies, that folds; copying, owed : rings, in the order of their
    tickets; arguments : of a kernel, then their addresses.
    """

    wires: Records
    rings: Records
    nics: Records
    ways: Records
    held: Ints
    through: Ints
    unused: Ints
    notices: Ints
    backs: Ints
    words: Ints
    polls: NDArray[np.int32]
    scratch: Ints
    kernels: Records
    copying: Records
    owed: Records
    arguments: Ints


class Queues(NamedTuple):
    """Wires of queue pairs. wires, ends : by number; works : of all ends; nics, devices : by number of the NIC; own,
    ports : the wires and NICs of this rank that are open; users : flows, by wire; pairs : NIC and number of each queue
    pair in one number, ascending, and its wire; polls : struct pollfd, the timer first, the watch, NICs' completions,
    NICs' events; scratch : for calls of libc and of devices.
    """

    wires: Records
    ends: Records
    works: Records
    nics: Records
    devices: Records
    own: Ints
    ports: Ints
    users: Ints
    pairs: Ints
    polls: NDArray[np.int32]
    scratch: Ints


# Places in the array of whole numbers.
UNSENT, UNFINISHED, TOTAL, OPERATION, BUSY, SLEEPS, STRIKE, ORDER, HELD, THROUGH, UNUSED, EARLY = range(12)
LEFT, BUFFER, BUFFER_BYTES, ITEM, FOLD, UNHEARD, NEWS, ASKED, CHUNKS, LANE, MOST = range(12, 23)
TIMING, WORKS, TIMED, BYTES_NS, CLOCK_NS, LENT_FROM = range(23, 29)
ON_GPU, LAUNCH, STREAM, ARRIVED, DONE_AT, TICKET, COPYING_AT, COPIES, OWED_AT, OWES, REFUSED = range(29, 40)
AHEAD, GET_EVENT, ACK_EVENTS, TIMER, INTS = range(40, 45)
LEFT_LANDING, LEFT_CREDIT = 1, 2
"""Sends not posted, receives not done, all of both; the operation; flows with something queued; how often this rank has
slept; how many must be done when somebody looks on; of chunks on their way: the next one's order, the sizes of both
heaps and of the stack; transfers of which Python keeps pieces until their turn.

What is left to Python, a landing or a credit; address and bytes of the buffer, bytes of an element, address of the
fold; 1 + a wire whose peer could not be woken; what this poll has told; flows of which something is asked; chunks
taken; a route whose lanes are to be watched; after how many chunks, sent or taken, Python has a turn.

Of copies and folds: each so-manyth is timed, 0: none; how many there were, and of these timed; nanoseconds of the timed
ones, and of the clock. Then where this rank's buffer is, if it is lent, else 0.

Of a GPU: whether payloads are there; addresses of cuLaunchKernel, the stream, the count of blocks, the word with the
last ticket done; the last ticket given; where the rings `copying` and `owed` begin and how much is in them; an error of
the driver.

Of queue pairs: the most chunks that a NIC may have; addresses of two functions of libibverbs; the timer's descriptor.
REFUSED is not 0 where a device has refused work."""

# Places in the array of times.
LOOK_AT, TIMERS, EVERY, BEFORE, DUE, LANES_AT, SOCKETS_AT, WAKE, BREATH_AT, AWAKE = range(10)
EARLY_S, LATE_S, NOW, LOOKED, TIMER_AT, TIMES = range(10, 16)
"""When to look at progress, when the first timer runs out, and how long after something was sent progress is looked at;
a moment of which all has been told that had happened; when an attendant looks on; when Python looks at how fast lanes
are; when sockets are looked at; when something may be posted; when Python deals with signals; until when a rank with a
GPU does not sleep.

Of queue pairs: `early_s` and lateness of `Backlog`; the time as of the last look, and whether that was in this poll;
what the timer is set to."""
