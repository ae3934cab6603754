"""Every number of direct exchange that is neither derived nor a limit, with its reason, and what other values lose.

"Half: 0.5" says that with half of the value plans are 0.5 points of the bound slower, on average over the best three of
five numbers of steps: 8 and 16 servers of 8 NICs, 256 MiB and 1 GiB, 5 us and 1 us, in six clusters where one server
starves, alone and beside others, or four where several do (simulated, the slower kind of receivers).
"""

from __future__ import annotations

from fractions import Fraction

from optcc.schedule.slots import HALF, ONE

# One server starves (`steps_one`, `steps_one_slots`)
UP = Fraction(2, 5)
"""The part of steps that grow: first sums are to be there soon. Half: 0.5, double: 1.1."""
DOWN, SHRINK = Fraction(11, 50), Fraction(9, 10)
"""The part of steps that shrink, at the end, each to that of the one before: the last sums are to go back at once, as
the second half begins with them. Half of DOWN: 0.1, double: 0.3, none: 0.7."""
LONGEST, LONGEST_ALONE = (ONE // 8, ONE // 8), (ONE // 4, ONE // 6)
"""The longest slots in which who starves sends, and receives: long ones are few chunks, short ones keep hubs from
waiting, which are many where no other server is slow. Half: 0.7, double: 0.6; alone 0.3 and 0.1."""
CHUNKS = 8
"""So many it sends on each NIC in the first half, about, as of slots so long: what these cost is room for others. Half:
0.4, double: 0.2."""
PORTS = 3
"""How far behind a rank is in all weighs so many times as much as how far behind a pair is. Half: 0.0, double: 0.1."""
LEAD = 2
"""So many steps ahead of an even course a pair waits: the second half is the mirror image, and has time at its end.
Without: up to 0.9 (six of 8 NICs dead, 1 GiB)."""
DUE = 9 * ONE // 10
"""By then who starves has sent hubs what others add last to, if need be before the rest: it might send some hubs
nothing before its last slots, half a half late. Half: 0.2, double: 0.0; 64 servers, 4 and 1 dead, 4 GiB: 3."""
FIRST = 3 * ONE // 5
"""Up to here it waits for first sums; later it has nothing to receive because all is done. Without: 0.1."""
LATE, PARTS = 9 * HALF // 10, 8
"""Slots that begin later take what is left over at the end, in so many parts. In one part: 0.1."""
TURNS = 5
"""Beside a rank that is hardly faster the parts of a section to which the two add last alternate in so many turns: else
it had nothing to receive for long, and then more than its NICs take. Half: 0.8, double: 0.0."""
HARDLY = Fraction(2, 3)
"""It is, if it has at most such a part of the full ones' NICs. Half: 1.6, double: 0.5."""

# Several starve (`steps_several`, `steps_several_slots`)
MOST_NICS = Fraction(3, 4)
"""Servers with so many of their NICs, or more, are hubs: between this and a half nobody would be busy all the time."""
FULL, LEAST = 9, 4
"""Results fill so many tenths of a step or more; less only where no hub has as much, but more than one in `LEAST`. Half
of FULL: 0.9, ten: 0.1; half of LEAST: 0.5, double: 0.0."""
OWN = 4
"""What one rank has sent another one weighs so many times as much as what it was sent by it. Half: 0.4, double: 0.2."""
TWO_KINDS = 4
"""With so many NICs of each of two slow servers half of the rails are half a step behind. More servers could not all
send to the same hubs on half of their NICs; what hubs have from them would get apart. Half: 1.1, double: 0.7."""

# All of them (`direct_rows`)
NEAR = 64
"""A slot takes one part in so many more, or less, if it ends with a piece then: the last bytes would wait for the
pair's next slot. Half and double: 0.0; without, 64 servers, 4, 2 and 1 dead: 3."""
MOST_KEPT = 4
"""Of what a NIC's earlier transfers wait for, at most so many of the latest are waited for by later ones, too. One
where several starve: 1.7; half: 0.2, double: 0.0."""

# Chunks along trees (`grouped_steps`)
LANDS = 2
"""A chunk that goes in a step can be passed on so many steps later: receivers are late, and latency comes on top. Half:
14.4, double: 12.5 (8, 16 and 32 servers in pods, one NIC dead, 16 MiB to 1 GiB; as the next ones)."""
EARLY = 3 * LANDS
"""By so many steps what others wait for to pass it on is due earlier: three hops of a chunk are left then. Half: 0.6,
double: 0.9."""
WAITS = 2 * LANDS + 1
"""Steps that a plan takes beyond those of a rank apart: first sums come over two hops, and it ends likewise."""
FEWEST = 14
"""Of fewer steps k a plan takes (k + FEWEST)/2. Half: 5.6, double: 7.8 (by which numbers of chunks are tried)."""
