"""CollNet of the plugin for NCCL without a GPU: how segments and windows change its time over the bound.

A node is a network namespace with two NICs (veth, `tc tbf`), and the harness of the tests plays NCCL: AllReduces of
2 MiB, eight in flight, timed from the moment at which all are ready to the last result. NICs have a fortieth of the
rate that the plugin is told, so that two cores are enough; so what a segment costs a processor does not show.
Contenders take turns, and a row has all of their times over the bound; headers take 1.045 of it. Prints a table; needs
root, `ip`, `tc` and a C compiler.

    python -m benchmarks.bench_nccl_windows --turns 3
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from optcc.export.calls import text
from optcc.theory import lower_bound
from optcc.values.cluster import Cluster, Nic, Server
from tests.namespaces import missing
from tests.nccl_ranks import Build, Ranks, namespaces

TOLD_MBPS, PART = 4000, 40
"""What the plugin is told of a whole NIC; by how much the NICs are slower."""
CALL = 2 << 20
NICS = 2
CASES = (((1.0, 1.0, 1.0, 1.0), 24), ((1.0, 1.0, 1.0, 0.5), 24), ((1.0, 1.0, 1.0, 0.5), 8), ((1.0, 1.0, 0.5, 0.5), 24))
"""What is left of each node's rate; calls: 8 are 16 MiB."""
CONTENDERS = {
    "as it is": {},
    "64 KiB, window 512 KiB": {"OPTCC_SEGMENT_BYTES": str(64 << 10), "OPTCC_WINDOW_BYTES": str(512 << 10)},
    "64 KiB, window 192 KiB": {"OPTCC_SEGMENT_BYTES": str(64 << 10), "OPTCC_WINDOW_BYTES": str(192 << 10)},
}


def shape(names: Sequence[str], parts: Sequence[float]) -> None:
    """Rates of all NICs, at both ends."""
    for node, part in enumerate(parts):
        for nic in range(NICS):
            for name, device in ((names[node], f"r{nic}"), (names[-1], f"v{node}r{nic}")):
                rate = f"{int(TOLD_MBPS * part / PART)}mbit"
                command = ["tc", "-n", name, "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate]
                subprocess.run([*command, "burst", "256kb", "limit", "64mb"], check=True)


def took(build: Build, names: Sequence[str], parts: Sequence[float], calls: int, env: dict[str, str]) -> float:
    """Seconds, to the last node's end. Raises RuntimeError where a result is wrong."""
    prefix = []
    for name, part in zip(names, parts, strict=False):
        told = ",".join([f"{TOLD_MBPS * part / 1000:g}"] * NICS)
        prefix.append(["ip", "netns", "exec", name, "env", f"OPTCC_RATES={told}"])
    nics = [",".join(f"r{nic}" for nic in range(NICS))] * len(parts)
    with Ranks(
        build, nics, calls=calls, connections=1, prefix=prefix, env={"HARNESS_BYTES": str(CALL), **env}
    ) as ranks:
        outcome = ranks.outcome()
    found = [re.search(r"took ([\d.]+) s", log) for log in outcome.logged]
    if outcome.fault:
        raise RuntimeError(outcome.fault)
    return max(float(one[1]) for one in found if one)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=3)
    turns = parser.parse_args().turns
    if why := missing():
        raise SystemExit(why)
    with tempfile.TemporaryDirectory() as place:
        build = Build.make(Path(place))
        print("| what nodes have left | MiB |", *(f"{name} |" for name in CONTENDERS))
        print("|---|---|" + "---|" * len(CONTENDERS))
        for parts, calls in CASES:
            rates = [Fraction(part) * TOLD_MBPS * 125000 / PART for part in parts]
            servers = (Server(f"s{i}", (Nic("a", rate, rate), Nic("b", rate, rate))) for i, rate in enumerate(rates))
            cluster = Cluster(tuple(servers))
            bound = float(lower_bound(cluster, CALL * calls).seconds)
            plans = Path(tempfile.mkdtemp(dir=place))
            (plans / "now.plan").write_text(text(cluster))
            times = defaultdict[str, list[float]](list)
            with namespaces(len(parts), NICS) as names:
                shape(names, parts)
                for _ in range(turns):
                    for name, env in CONTENDERS.items():
                        done = took(build, names, parts, calls, {"OPTCC_PLANS": str(plans), **env})
                        times[name].append(done / bound)
            row = (" ".join(f"{one:.2f}" for one in sorted(times[name])) for name in CONTENDERS)
            left = ", ".join(f"{part:g}" for part in parts)
            print(f"| {left} | {CALL * calls >> 20} |", *(f"{one} |" for one in row), flush=True)


if __name__ == "__main__":
    main()
