"""Random degraded clusters, measured by the simulator with noise, and what `optcc diagnose` makes of that.

    python benchmarks/bench_diagnosis.py [CLUSTERS]

1 to 3 NICs of 8 servers with 8 NICs keep 0 to 90 %; point-to-point, ring AllReduce and all-to-all in nccl-tests' form,
each time with 3 % noise. Then 128 servers, timed.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from optcc.diagnose.evidence import Evidence
from optcc.diagnose.ports import Ports
from optcc.diagnose.readers import read_text
from optcc.diagnose.verdict import Verdict, judge
from tests.diagnosis_rig import Lab, random_faults


def one(seed: int, servers: int = 8, nics: int = 8) -> tuple[Lab, Verdict, float]:
    """A random cluster, the verdict, and the seconds from the files' texts to it."""
    rng = random.Random(seed)
    lab = Lab(servers, nics, random_faults(rng, servers, nics), rng=rng)
    files = list(lab.survey())
    ports = Ports(lab.cluster)
    started = time.perf_counter()
    evidence = Evidence.together(read_text(text, name, ports) for name, text in files)
    verdict = judge(evidence, ports)
    return lab, verdict, time.perf_counter() - started


def main(clusters: int) -> int:
    exact = wrong = certain = sure = 0
    worst = 0.0
    for seed in range(clusters):
        lab, verdict, _ = one(seed)
        truth = {f"server{s}/nic{n}": left for (s, n), left in lab.faults.items()}
        named = {finding.nic: finding for finding in verdict.findings}
        exact += named.keys() == truth.keys()
        certain += sum(f.sure == "certain" and nic not in truth for nic, f in named.items())
        sure += sum(f.sure == "certain" for f in named.values())
        for nic, left in truth.items():
            if left and nic in named:
                worst = max(worst, abs(named[nic].left / left - 1))
                wrong += abs(named[nic].left / left - 1) > 0.05
        if named.keys() != truth.keys():
            print(f"  seed {seed}: {truth}, named {[(f.nic, f.left, f.sure) for f in named.values()]}")
    print(f"degraded NICs named exactly: {exact} of {clusters} clusters")
    print(f"healthy NICs named certain: {certain}; degraded ones: {sure}")
    print(f"rates off by more than 5 %: {wrong}; the worst by {worst:.1%}")
    lab, verdict, seconds = one(0, servers=128)
    named = {finding.nic for finding in verdict.findings}
    print(f"128 servers: {verdict.measured} measurements read and explained in {seconds:.1f} s, "
          f"{'exactly' if named == {f'server{s}/nic{n}' for s, n in lab.faults} else 'wrongly'}")  # fmt: skip
    return 0 if exact >= 0.95 * clusters and not certain and not wrong else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
