"""Slow NICs planted among emulated ones, measured by real transfers on this machine, and found by `optcc diagnose`.

    python benchmarks/bench_diagnosis_wires.py [RUNS]

Each run: 4 servers of 2 NICs over loopback, one or two of them at 20 to 90 % of their rate.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

TOPOLOGY = "uniform:servers=4,nics=2,rate=400Gb/s"
LIMIT_S = 300


def one(seed: int, folder: Path) -> tuple[dict[str, float], dict[str, float], list[str]]:
    """(what was planted, what was named, what was called certain though it is healthy): NIC -> what is left."""
    rng = random.Random(seed)
    places = rng.sample([f"server{s}/nic{n}" for s in range(4) for n in range(2)], rng.randint(1, 2))
    planted = {place: round(rng.uniform(0.2, 0.9), 2) for place in places}
    slow = [word for place, left in planted.items() for word in ("--slow", f"{place}={left}")]
    measured = folder / f"{seed}.json"
    measured.write_text(_optcc("calibrate", TOPOLOGY, "--repeat", "3", "--probe", "50ms", *slow, "--json"))
    found = json.loads(_optcc("diagnose", TOPOLOGY, str(measured), "--json"))
    named = {nic["nic"]: min(x for x in (nic["out_left"], nic["in_left"]) if x is not None) for nic in found["nics"]}
    wrong = [nic["nic"] for nic in found["nics"] if nic["sure"] == "certain" and nic["nic"] not in planted]
    return planted, named, wrong


def _optcc(*words: str) -> str:
    command = [sys.executable, "-m", "optcc", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr}")
    return done.stdout


def main(runs: int) -> int:
    good, worst = 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(runs):
            planted, named, wrong = one(seed, Path(folder))
            good += named.keys() == planted.keys() and not wrong
            worst = max([worst, *(abs(named[nic] / planted[nic] - 1) for nic in planted if nic in named)])
            if named.keys() != planted.keys() or wrong:
                print(f"  seed {seed}: planted {planted}, named {named}, wrongly certain {wrong}")
    print(f"planted NICs named exactly: {good} of {runs}; rates off by {worst:.1%} at most")
    return 0 if good == runs else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
