"""Throughput over time of training that loses a NIC and a rank: runs it in the lab, draws docs/pictures/training.svg.

    python tools/training_picture.py [RECORD]       RECORD: draw this one, which lab/training.py has written

Needs torch in this environment, and what the lab needs (docs/lab.md); a few minutes. Exit status 1 when a rank fails
or ends with other weights than one process that computes alone, as examples/survive_ddp.py finds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from optcc.study.page import save

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "out" / "training"
PICTURE = ROOT / "docs" / "pictures" / "training.svg"
LAB = ("lab/run.sh", "--nics", "8", "--memory", "3G", "--limit", "900")
BLUE, VERMILION = "#0072B2", "#D55E00"


def recorded() -> Path:
    """The record of a run in the lab."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    packages = sysconfig.get_path("purelib")
    command = [*LAB, "--results", str(RESULTS), "--packages", packages, "--", "python3", "-m", "lab.training"]
    subprocess.run(command, cwd=ROOT, check=True)
    return RESULTS / "training.json"


def drawn(record: dict[str, Any]) -> Figure:
    """Samples per second of each step.

    record : "batch" of a rank; "ended": (seconds, ranks) of each step; "struck": seconds at which a NIC is lost
    """
    at, ranks = np.array([0.0, *(t for t, _ in record["ended"])]), np.array([world for _, world in record["ended"]])
    rate = ranks * record["batch"] / np.diff(at)
    figure = Figure(figsize=(7.5, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.stairs(rate, at, color=BLUE, baseline=None, linewidth=1.6)
    top = 1.25 * rate.max()
    lost = at[np.flatnonzero(np.diff(ranks))[0] + 1]  # when the last step of all ranks had ended
    for seconds, text in ((record["struck"], "a NIC's link goes down"), (lost, f"a rank is lost, {ranks[-1]} go on")):
        axes.axvline(seconds, color=VERMILION, linewidth=1, linestyle="--")
        axes.text(seconds + 0.01 * at[-1], 0.92 * top, text, color=VERMILION, fontsize=9)
    axes.set_xlabel("seconds")
    axes.set_ylabel("samples per second")
    axes.set_xlim(0, at[-1])
    axes.set_ylim(0, top)
    return figure


def main(arguments: list[str]) -> int:
    try:
        record = Path(arguments[0]) if arguments else recorded()
    except subprocess.CalledProcessError as error:
        print(f"the run in the lab has ended with status {error.returncode}", file=sys.stderr)
        return 1
    save(drawn(json.loads(record.read_text())), PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
