"""Slow NICs planted among emulated ones, measured by transfers on this machine, and found by `optcc diagnose`."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

TOPOLOGY = "uniform:servers=4,nics=2,rate=400Gb/s"
LIMIT_S = 300


@dataclass(frozen=True)
class Run:
    """NIC -> what is left of it: as planted, and as named; and healthy NICs that were called certain."""

    planted: dict[str, float]
    named: dict[str, float]
    wrong: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """The planted ones and no others."""
        return self.planted.keys() == self.named.keys() and not self.wrong

    @property
    def error(self) -> float:
        """Of the rates of those that were named, relative, the largest."""
        return max(
            (abs(self.named[nic] / left - 1) for nic, left in self.planted.items() if nic in self.named), default=0
        )


def run(seed: int) -> Run:
    """One or two NICs of 4 servers with 2 at 20 to 90 % of their rate: `optcc calibrate`, then `optcc diagnose`."""
    rng = random.Random(seed)
    places = rng.sample([f"server{s}/nic{n}" for s in range(4) for n in range(2)], rng.randint(1, 2))
    planted = {place: round(rng.uniform(0.2, 0.9), 2) for place in places}
    slow = [word for place, left in planted.items() for word in ("--slow", f"{place}={left}")]
    with tempfile.TemporaryDirectory() as folder:
        measured = Path(folder) / "calibrate.json"
        measured.write_text(_optcc("calibrate", TOPOLOGY, "--repeat", "3", "--probe", "50ms", *slow, "--json"))
        found = json.loads(_optcc("diagnose", TOPOLOGY, str(measured), "--json"))
    named = {nic["nic"]: min(x for x in (nic["out_left"], nic["in_left"]) if x is not None) for nic in found["nics"]}
    wrong = tuple(nic["nic"] for nic in found["nics"] if nic["sure"] == "certain" and nic["nic"] not in planted)
    return Run(planted, named, wrong)


def _optcc(*words: str) -> str:
    command = [sys.executable, "-m", "optcc", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr}")
    return done.stdout
