"""Random interleavings of the failover protocol's world: their seed, and what must happen in them."""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

from tests.protocol_net import run

SEED = int(os.environ.get("OPTCC_PROTOCOL_SEED") or random.SystemRandom().randrange(10**9))
"""First seed of the random interleavings; set the variable to the seed that a failure names to see it again first."""
MUST_HAPPEN = (
    *("moved", "moved back", "written again", "landed late", "severed", "found", "heard"),
    *("messages lost", "messages doubled", "stale messages", "Refuse", "Notice", "paused right after it was alive"),
)
"""Each for more than one in a hundred runs, or the world is too kind for them to say anything."""


def interleavings(seeds: range, **kinds: Any) -> Counter[str]:
    """Plays `seeds`, counts what happened."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            seen += run(seed, **kinds).seen
        except Exception as error:
            raise AssertionError(f"OPTCC_PROTOCOL_SEED={seed} shows: {error}") from error
    return seen


def too_rare(seen: Counter[str], runs: int) -> list[str]:
    """What had to happen in so many runs and did not."""
    return [what for what in MUST_HAPPEN if seen[what] <= runs // 100]
