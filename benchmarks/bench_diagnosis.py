"""How often `optcc diagnose` names the right NICs: simulated clusters, local wires, 128 servers. Writes
docs/bench-diagnosis.md.

Exit status 1 where, of everything measured, fewer than 95 of 100 clusters are named exactly, a healthy NIC is ever
called certain, or likely in more than 2 of 100 clusters, a rate is off by more than 5 %, a NIC planted on local wires
is missed, or 128 servers take 5 s.
"""

from __future__ import annotations

import json
import platform
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.progress import track

import optcc
from benchmarks.pages import parser, write
from optcc.diagnose.evidence import Evidence, NicDirections
from optcc.diagnose.fit import Sure
from optcc.diagnose.readers import read_text
from optcc.diagnose.verdict import Verdict, judge
from tests.diagnosis_rig import Lab, random_faults

TOPOLOGY = "uniform:servers=4,nics=2,rate=400Gb/s"
WAIT_S = 300


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


def planted(seed: int) -> Run:
    """One or two NICs of 4 servers with 2 at 20 to 90 % of their rate: `optcc calibrate`, then `optcc diagnose`."""
    rng = random.Random(seed)
    places = rng.sample([f"server{s}/nic{n}" for s in range(4) for n in range(2)], rng.randint(1, 2))
    left = {place: round(rng.uniform(0.2, 0.9), 2) for place in places}
    slow = [word for place, part in left.items() for word in ("--slow", f"{place}={part}")]
    with tempfile.TemporaryDirectory() as folder:
        measured = Path(folder) / "calibrate.json"
        measured.write_text(_optcc("calibrate", TOPOLOGY, "--repeat", "3", "--probe", "50ms", *slow, "--json"))
        found = json.loads(_optcc("diagnose", TOPOLOGY, str(measured), "--json"))
    named = {nic["nic"]: min(x for x in (nic["out_left"], nic["in_left"]) if x is not None) for nic in found["nics"]}
    wrong = tuple(nic["nic"] for nic in found["nics"] if nic["sure"] == "certain" and nic["nic"] not in left)
    return Run(left, named, wrong)


def _optcc(*words: str) -> str:
    command = [sys.executable, "-m", "optcc", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr}")
    return done.stdout


SERVERS, NICS, APART, ROWS = 8, 8, 0.03, 0.003
EXACT, OFF, ACCUSED, LIMIT_S = 0.95, 0.05, 0.02, 5.0
PAGE = f"""# Are the right NICs named?

Made by `make bench-diagnosis`. How `optcc diagnose` concludes: [diagnose.md](diagnose.md).

**Simulated.** {{clusters}} random clusters of {SERVERS} servers with {NICS} NICs, of which 1 to 3 keep 0 to 90 % of
their rate (one in five of these nothing). Times are those of optcc's simulator, printed as nccl-tests prints them, and
read from that text. Each run is off by {100 * APART:g} %, all of its rows alike, and each of these by another
{100 * ROWS:g} %, one standard deviation.

* Exact: the degraded NICs and no others are named. Undecided: not so, and the verdict says that others fit as well.
  Else it names one too few, or another one as likely. Missed: a degraded NIC is neither named, nor among those that
  fit as well, nor among those that the verdict lists as not seen at their full rate.
  A NIC that has 85 to 90 % left is missed where runs differ as much.
* Certain: NICs that are called so, over all clusters; wrongly: healthy ones among them. Likely, wrongly: healthy ones
  that are called likely. Off: the largest error of a rate, of those that are certain.

| measured | exact | undecided | missed | certain | wrongly | likely, wrongly | off |
|---|---|---|---|---|---|---|---|
{{studies}}

**Local wires.** 4 servers of 2 emulated NICs on one machine, one or two of them slowed down to 20 to 90 %, measured by
`optcc calibrate`: real transfers, but the emulation sets their pace, so that there is next to no noise. The slow ones
and no others are named in {{exact}} of {{runs}} runs; rates are off by at most {{off}} %.

**128 servers** of {NICS} NICs, three of them slow, simulated: {{measured}} measurements in nccl-tests' form. The whole
command `optcc diagnose`, with bounds, repairs and keep or drain, takes {{seconds}} s of one core and names them
{{right}}.

optcc {{optcc}}, Python {{python}}.
"""
Files = Iterator[tuple[str, str]]
Faults = Mapping[tuple[int, int], float]


def everything(lab: Lab) -> Files:
    """Each NIC with 4 others, one AllReduce and two all-to-alls for each rail: what `optcc diagnose` asks for."""
    yield from lab.survey()


def neighbours(lab: Lab) -> Files:
    """Each NIC with 2 others, point to point."""
    yield from (file for file in lab.survey(far=(1,)) if file[0].startswith("sendrecv"))


def one_pair(lab: Lab) -> Files:
    """Each NIC with 1 other, point to point: servers in pairs."""
    for name, text in lab.survey(far=(1,)):
        if name.startswith("sendrecv") and int(name.split("-")[1]) % 2 == 0:
            yield name, text


def a_third(lab: Lab) -> Files:
    """A random third of everything."""
    files = list(lab.survey())
    yield from lab.rng.sample(files, len(files) // 3)


def collectives(lab: Lab) -> Files:
    """One AllReduce and two all-to-alls for each rail, nothing point to point."""
    yield from (file for file in lab.survey() if not file[0].startswith("sendrecv"))


@dataclass
class Study:
    """Counts over clusters, as the page explains them; `off` relative, `inexact` for people who look closer."""

    what: str
    clusters: int = 0
    exact: int = 0
    undecided: int = 0
    certain: int = 0
    wrong: int = 0
    accused: int = 0
    off: float = 0.0
    inexact: list[str] = field(default_factory=list)
    missed: int = 0

    def add(self, seed: int, lab: Lab, verdict: Verdict) -> None:
        """One more cluster."""
        truth = {f"server{s}/nic{n}": left for (s, n), left in lab.faults.items()}
        named = {finding.nic: finding for finding in verdict.findings}
        sure = {nic: finding.left for nic, finding in named.items() if finding.sure is Sure.CERTAIN}
        exact = named.keys() == truth.keys()
        twins = {twin for finding in named.values() for twin in finding.twins}
        self.clusters += 1
        self.exact += exact
        self.undecided += not exact and any(finding.sure is Sure.POSSIBLE for finding in named.values())
        self.certain += len(sure)
        self.wrong += len(sure.keys() - truth.keys())
        self.accused += sum(f.sure is Sure.LIKELY and f.nic not in truth for f in named.values())
        self.off = max([self.off, *(abs(left / truth[nic] - 1) for nic, left in sure.items() if truth.get(nic))])
        self.missed += bool(truth.keys() - named.keys() - set(verdict.unmeasured) - twins)
        if not exact:
            self.inexact.append(f"seed {seed}: {truth}, named {[(n, round(f.left, 3)) for n, f in named.items()]}")

    def __str__(self) -> str:
        cells = (
            self.what,
            self.exact,
            self.undecided,
            self.missed,
            self.certain,
            self.wrong,
            self.accused,
            f"{100 * self.off:.1f} %",
        )
        return f"| {' | '.join(map(str, cells))} |"


def judged(lab: Lab, files: Files) -> Verdict:
    """From the files' texts to the verdict."""
    ports = NicDirections(lab.cluster)
    return judge(Evidence.together(read_text(text, name, ports) for name, text in files), ports)


def none(rng: random.Random) -> Faults:
    """No NIC degraded."""
    return {}


def alike(rng: random.Random) -> Faults:
    """2 to 5 NICs of one rail at one rate, as behind a bad switch."""
    nic, left = rng.randrange(NICS), round(rng.uniform(0.1, 0.85), 2)
    return {(server, nic): left for server in rng.sample(range(SERVERS), rng.randint(2, 5))}


def random_ones(rng: random.Random) -> Faults:
    """1 to 3 NICs, anywhere."""
    return random_faults(rng, SERVERS, NICS)


def study(
    evidence: Callable[[Lab], Files],
    clusters: int,
    what: str = "",
    faults: Callable[[random.Random], Faults] = random_ones,
    **more: float,
) -> Study:
    """`more` : of the lab, such as how far runs are apart."""
    found = Study(what or " ".join((evidence.__doc__ or "").split()).rstrip("."))
    for seed in track(range(clusters), description=found.what[:40]):
        rng = random.Random(seed)
        apart, reached = more.get("apart", APART), more.get("reached", 1.0)
        lab = Lab(SERVERS, NICS, faults(rng), apart=apart, noise=ROWS, reached=reached, rng=rng)
        found.add(seed, lab, judged(lab, evidence(lab)))
    return found


def at_scale() -> tuple[int, float, bool]:
    """`optcc diagnose` on 128 servers of which three NICs are slow: measurements, processor seconds of the whole
    command, whether the three and no others are certain."""
    lab = Lab(128, NICS, {(17, 3): 0.4, (90, 0): 0.0, (107, 5): 0.7}, rng=random.Random(0))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "all.txt"
        path.write_text("".join(text for _, text in everything(lab)))
        command = ["diagnose", f"uniform:servers=128,nics={NICS},rate=400Gb/s", str(path), "--json"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-m", "optcc", *command], capture_output=True, check=True, timeout=600)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = json.loads(done.stdout)
    sure = {nic["nic"] for nic in found["nics"] if nic["sure"] == "certain"}
    right = sure == {nic["nic"] for nic in found["nics"]} == {f"server{s}/nic{n}" for s, n in lab.faults}
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return found["fit"]["measurements"], seconds, right


def main() -> int:
    asked = parser(__doc__, "bench-diagnosis")
    asked.add_argument("--clusters", type=int, default=100)
    asked.add_argument("--runs", type=int, default=20, help="on local wires")
    given = asked.parse_args()
    first = study(everything, given.clusters)
    studies = [
        first,
        study(everything, given.clusters, "the same, the healthy ones at 88 % of nameplate", reached=0.88),
        study(everything, given.clusters, "the same, runs 6 % apart", apart=0.06),
        study(everything, given.clusters, "the same, no NIC degraded", none),
        study(neighbours, given.clusters, "no NIC degraded, each NIC with 2 others, point to point", none),
        study(everything, given.clusters, "the same, 2 to 5 NICs of one rail degraded alike", alike),
        *(study(evidence, given.clusters) for evidence in (neighbours, a_third, one_pair, collectives)),
    ]
    runs = [planted(seed) for seed in track(range(given.runs), description="local wires")]
    measured, seconds, at_128 = at_scale()
    for one in first.inexact:
        print(one, file=sys.stderr)
    exact, off = sum(run.exact for run in runs), 100 * max((run.error for run in runs), default=0)
    text = PAGE.format(
        clusters=given.clusters,
        studies="\n".join(map(str, studies)),
        exact=exact,
        runs=len(runs),
        off=f"{off:.1f}",
        measured=measured,
        seconds=f"{seconds:.1f}",
        right="exactly" if at_128 else "wrongly",
        python=platform.python_version(),
        optcc=optcc.__version__,
    )
    write(given.output, text)
    good = (
        first.exact >= EXACT * given.clusters
        and first.off <= OFF
        and not first.missed
        and not any(one.wrong or one.accused > ACCUSED * one.clusters for one in studies)
    )
    return 0 if good and exact == len(runs) and at_128 and seconds < LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
