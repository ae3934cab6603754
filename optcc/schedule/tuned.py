"""Every number that shapes plans and is neither derived nor a limit, with its reason, and the loss with others.

Of direct exchange, "half: 0.5" means: with half of the value, plans take 0.5 points of the bound longer. This is the
average over the best three of five numbers of steps, for 8 and 16 servers of 8 NICs, 256 MiB and 1 GiB, 5 us and 1 us.
It covers six clusters where one server starves, alone and beside others, or four where several do (simulated, the
slower kind of receivers). `make bench-numbers` makes half and double of all of them over other clusters.
"""

from __future__ import annotations

from fractions import Fraction

# Nested rings (`nested_pace`)
FEW_LEAVES = 8
"""With more leaves one segment is under way at a time, which keeps 1 + 2/k; two lose up to 4/k."""
LEAF_SECTIONS = 3
"""Sections over P-1 of a pattern with several leaves or a pace, where a recipe gives no number. Of 1, 2 and 3 only 3
kept 1 + 2/k on all clusters with up to eight leaves."""

# One server starves (`steps_one`, `steps_one_slots`)
UP = Fraction(2, 5)
"""Part of the steps that grow, so that first sums are there soon. Half: 0.5, double: 1.1."""
DOWN, SHRINK = Fraction(11, 50), Fraction(9, 10)
"""Part of the steps that shrink, at the end; the length of each over the one before. The last sums must go back at
once, as the second half begins with them. Half of DOWN: 0.1, double: 0.3, none: 0.7."""
LONGEST, LONGEST_ALONE = (Fraction(1, 8), Fraction(1, 8)), (Fraction(1, 4), Fraction(1, 6))
"""Longest slots, as parts of a half, in which the starving rank sends, and receives. Long slots are few chunks; short
ones keep hubs from waiting, of which there are many where no other server is slow. Half: 0.7, double: 0.6; alone 0.3
and 0.1."""
TURNS = 5
"""Beside a rank that is hardly faster, the parts of a section to which the two add last alternate in this many turns.
Otherwise it had nothing to receive for long, then more than its NICs take. Half: 0.8, double: 0.0."""
HARDLY = Fraction(2, 3)
"""A rank is hardly faster if it has at most this part of the full ranks' NICs. Half: 1.6, double: 0.5."""
GROWS = 0.6
"""Where one server starves, steps grow at first: each by so much over the square root of their number. Almost double:
0.3; none: 0.5 (11 clusters of 8 to 24 servers, 256 MiB and 1 GiB)."""

# Several starve (`steps_several`, `steps_several_slots`)
MOST_NICS = Fraction(3, 4)
"""Servers with at least this part of their NICs are hubs: between this and a half nobody would be busy all the time."""

# All of them (`direct_candidates`, `direct_rows`)
MOST_LOST = Fraction(1, 16)
"""A chunk's cost counts as at most so much of a half where steps are found with it, or hardly any were possible.
Without: 1 MiB among 8 servers takes 17 % longer with one starving, 42 % with two (5 us and 1 us)."""
NEAR = 64
"""A slot takes up to 1/NEAR more or less if it then ends with a piece: the last bytes would wait for the pair's next
slot. Half and double: 0.0; without, 64 servers, 4, 2 and 1 dead: 3."""
MOST_KEPT = 4
"""Most dependencies of a NIC's earlier transfers, the latest ones, that later transfers wait for, too. One where
several starve: 1.7; half: 0.2, double: 0.0."""

# Striped exchange (`striped`)
WAYS = 4
"""Rounds by way of slow ranks per other round, for which nobody waits, if there are many. Half: 0.4 points of the
bound, double: 0.3 (random clusters with slow NICs, five costs)."""

# Chunks along trees (`grouped_steps`)
LANDS = 2
"""Steps after which a sent chunk can be passed on: receivers are late, and latency comes on top. Half: 14.4, double:
12.5 (8, 16 and 32 servers in pods, one NIC dead, 16 MiB to 1 GiB; as for the next one)."""
FEWEST = 14
"""A plan of fewer steps k takes (k + FEWEST)/2 steps, by which numbers of chunks are tried. Half: 5.6, double: 7.8."""

# Small messages, broadcasts (`simple`)
FAN = 4
"""Children of a rank in a tree of small messages: it serves them one after the other in about the time of a hop."""
PIECE_BYTES = 1 << 20
"""A broadcast is handed on in pieces of so much: as much as a chunk carries."""
