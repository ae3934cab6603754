"""Every number that shapes plans and is neither derived nor a limit, with its reason, and the loss with others.

Of direct exchange, "half: 0.5" means: with half of the value, plans take 0.5 points of the bound longer. This is the
average over the best three of five numbers of steps, for 8 and 16 servers of 8 NICs, 256 MiB and 1 GiB, 5 us and 1 us.
It covers six clusters where one server starves, alone and beside others, or four where several do (simulated, the
slower kind of receivers).
"""

from __future__ import annotations

from fractions import Fraction

# Nested rings
FEW_LEAVES = 8
"""With more leaves one segment is under way at a time, which keeps 1 + 2/k; two lose up to 4/k."""
LEAF_SECTIONS = 3
"""Sections over P-1 of a pattern with several leaves or a pace, where a recipe gives no number. Of 1, 2 and 3 only 3
kept 1 + 2/k on all clusters with up to eight leaves."""

# Direct exchange where one server starves
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

# Direct exchange where several starve
MOST_NICS = Fraction(3, 4)
"""Servers with at least this part of their NICs are hubs: between this and a half nobody would be busy all the time."""

# Direct exchange of any kind
MOST_LOST = Fraction(1, 16)
"""A chunk's cost counts as at most so much of a half where steps are found with it, or hardly any were possible.
Without: 1 MiB among 8 servers takes 17 % longer with one starving, 42 % with two (5 us and 1 us)."""
NEAR = 64
"""A slot takes up to 1/NEAR more or less if it then ends with a piece: the last bytes would wait for the pair's next
slot. Half and double: 0.0; without, 64 servers, 4, 2 and 1 dead: 3."""
MOST_KEPT = 4
"""Most dependencies of a NIC's earlier transfers, the latest ones, that later transfers wait for, too. One where
several starve: 1.7; half: 0.2, double: 0.0."""

# Striped exchange
WAYS = 4
"""Rounds by way of slow ranks per other round, for which nobody waits, if there are many. Half: 0.4 points of the
bound, double: 0.3 (random clusters with slow NICs, five costs)."""

# Direct exchange in two levels
LANDS = 2
"""Steps after which a sent chunk can be passed on: receivers are late, and latency comes on top. Half: 14.4, double:
12.5 (8, 16 and 32 servers in pods, one NIC dead, 16 MiB to 1 GiB; as for the next one)."""
FEWEST = 14
"""A plan of fewer steps k takes (k + FEWEST)/2 steps, by which numbers of chunks are tried. Half: 5.6, double: 7.8."""

# Small messages, broadcasts (`simple`, `whole`, `halving`)
FAN = 4
"""Children of a rank in a tree of small messages: it serves them one after the other in about the time of a hop."""
PIECE_BYTES = 1 << 20
"""A broadcast is handed on in pieces of so much: as much as a chunk carries."""


# How much planning may cost: limits of what is tried, by time and memory, each with its reason. More effort
# finds faster plans.


DEFAULT_SEGMENTS = 64
"""Parts along time where these cost nothing: filling the pipeline takes about 1/64 of the time."""
FREE_RUNS = 2
"""Runs over NVLink a segment of nested rings where runs cost nothing: more are more transfers to simulate. Half: 1.7
(to 1), double: 0.7 better with up to twice the transfers (28 clusters of 2 to 16 servers, 1 GiB, 16 segments)."""
MIN_CHUNK, MIN_GPU_CHUNK = 16 * 1024, 256 * 1024
"""A section smaller than this spends more on per-message cost than a deeper pipeline saves. Between GPUs: of 1024, 1
GiB is then 4 segments deep and 3 million transfers; every further segment is as many again."""
LARGE, MANY = 16, 64
"""Above `LARGE` ranks a server's NICs are simulated as one, an eighth of the work for eight NICs. Above `MANY` less is
tried, as transfers grow with the square of the ranks."""
MAX_STRIPES = 1_000_000
"""Longest simulation that is tried, about a second: pipelines that deep pay for chunks."""
NEARLY = Fraction(51, 50)
"""Costly families are not tried where the fluid time of what is fastest is so near the bound."""
TRIES, TRIED_CHUNKS = 16, 200_000
"""Numbers of steps simulated: so many, or as many as have this number of chunks in all, about two seconds; at least
one. The loss of steps varies by a point or two from one number to the next: half as many chunks lose 0.1 (8, 16 and 24
servers, 1 MiB to 4 GiB)."""
NEARBY = {
    name: tuple(tuple(Fraction(n, of) for n in way) for way in ways)
    for name, of, ways in (
        ("growth", 8, ((7, 6, 4, 2), (9, 10))),
        ("chunk", 4, ((3, 2, 0), (5, 6, 8))),
        ("margin", 2, ((1,), (3,))),
    )
}
"""Fields of a recipe of steps, and by which factors each is tried once the number of steps is found, in this order, in
each of two ways as long as it is faster. That takes half the time of planning again, and gains 0.0 to 0.5 points of the
bound where some server starves; to try all factors takes as long once more, for 0.0 to 0.6."""
KINDS = 4
"""Combinations of a way to find steps and a number of lanes that are tried where NICs differ."""
MOST_TRIED, TRIED_MOVES = 5, 5 * 2**14
"""Numbers of chunks simulated of two levels: so many, or as many as have this number of chunks times ranks in all, two
seconds."""
MOST_ROOTS = 32
"""Roots of trees made at once. Half as many: their ports are twice as busy; twice as many: planning takes 4 times."""
