"""Faults over queue pairs, counted: `make failover-verbs` runs this inside and keeps its page.

Kinds come in turns, each at a random moment of a collective, as in tests/verbs/test_native_session.py; then another one
must be right. In virtual time all of it repeats to the microsecond.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from lab import network
from lab.allreduce import Forked
from optcc.runtime.control import launch
from tests.failover_counts import Counts, count, page, scene_of
from tests.verbs.test_native_session import KINDS, SHAPES, job, over_devices, prepare


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strikes", type=int, default=200)
    options = parser.parse_args()
    launch.start_rank = Forked  # type: ignore[assignment]
    found = {kind: Counts() for kind in KINDS}
    made = (
        "Made by `make failover-verbs` in the lab ([lab.md](lab.md)): links and packets are really disturbed, in"
        " virtual time; 2 and 4 ranks with 1 to 3 NICs."
    )
    for seed in range(options.strikes):
        kind = KINDS[seed % len(KINDS)]
        scene = over_devices(scene_of(kind, seed, SHAPES))
        prepare(network, scene)
        count(scene, found[kind], job)
        text = page("What a collective survives over queue pairs", made, found)
        Path("/results/failover.md").write_text(text, encoding="utf-8")  # what is done stays, whatever comes
        print(f"{seed + 1} of {options.strikes}: {kind}", flush=True)
    print(text, flush=True)
    return 1 if any(each.wrong for each in found.values()) else 0


if __name__ == "__main__":
    if "OPTCC_LAB" not in os.environ:
        sys.exit("only in the lab: make failover-verbs")
    sys.exit(main())
