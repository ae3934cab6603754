"""How much planning may cost: limits of what is tried, by time and memory, each with its reason.

More effort finds faster plans: `make bench-numbers` says what half and double of each number do.
"""

from __future__ import annotations

from fractions import Fraction

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
KINDS = 4
"""Combinations of a way to find steps and a number of lanes that are tried where NICs differ."""
MOST_TRIED, TRIED_MOVES = 5, 5 * 2**14
"""Numbers of chunks simulated of two levels: so many, or as many as have this number of chunks times ranks in all, two
seconds."""
MOST_ROOTS = 32
"""Roots of trees made at once. Half as many: their ports are twice as busy; twice as many: planning takes 4 times."""
