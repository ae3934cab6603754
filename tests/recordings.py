"""What examples/slow-job and examples/monitoring hold: measurements of simulated clusters, and the metrics of them.

`python -m tests.recordings` writes them anew; tests/test_monitoring.py makes them again and compares.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from optcc.diagnose.diagnosis import diagnose, metrics_text
from optcc.diagnose.evidence import NicDirections
from optcc.diagnose.readers import gather
from tests.diagnosis_rig import Lab

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SERVERS, NICS = 8, 8
EVERYONE = range(SERVERS)
AT_S = 1767225600.0
"""The first of January 2026, when all of it is said to have been recorded."""
SLOW_JOB = {(2, 1): 0.25, (5, 6): 0.6}
SLOW_SERVER = {(3, nic): 0.1 for nic in range(NICS)}


def lab(faults: dict[tuple[int, int], float]) -> Lab:
    """8 servers of 8 NICs that reach 93 % of nameplate, runs 1 % apart."""
    return Lab(SERVERS, NICS, faults, apart=0.01, reached=0.93, rng=random.Random(1))


def job(of: Lab) -> str:
    """AllReduce of all GPUs."""
    return of.table("all_reduce", EVERYONE, range(NICS))


def rails(of: Lab) -> str:
    """AllReduce over each NIC alone, one after the other."""
    return "".join(of.table("all_reduce", EVERYONE, [nic]) for nic in range(NICS))


def pairs(of: Lab, nics: Iterable[int]) -> str:
    """Of each of these NICs, every server with the next and the next but one."""
    return "".join(
        of.table("sendrecv", [server, (server + hop) % SERVERS], [nic])
        for nic in nics
        for hop in (1, 2)
        for server in EVERYONE
    )


def slow_job() -> dict[str, str]:
    """The files of examples/slow-job: server2/nic1 at a quarter of its rate, server5/nic6 at 60 %."""
    slow = lab(SLOW_JOB)
    return {"job.txt": job(slow), "rails.txt": rails(slow), "pairs.txt": pairs(slow, (1, 6))}


def evidence() -> Iterator[tuple[str, dict[str, str]]]:
    """Recording -> the files that it is made of."""
    whole, hurt, server, dead = lab({}), slow_job(), lab(SLOW_SERVER), lab({(4, 2): 0.0})
    yield "healthy", {"job.txt": job(whole), "rails.txt": rails(whole)}
    yield "degraded", hurt
    yield "drain", {"job.txt": job(server), "pairs.txt": pairs(server, range(NICS))}
    yield "dead", {"rails.txt": rails(dead), "pairs.txt": pairs(dead, (2,))}
    yield "thin", {"job.txt": hurt["job.txt"]}
    # One cable, that of server1 to server2 over nic3: both NICs are as fast as ever with others.
    one = lab({(1, 3): 0.5}).table("sendrecv", [1, 2], [3])
    # A job of optcc's has lost a rank: what one of the others raised.
    yield "lost", {"job.txt": job(whole), "rails.txt": rails(whole), "rank1.txt": f"{RAISED}\n"}
    yield "path", {"rails.txt": rails(whole), "pairs.txt": pairs(whole, (3,)), "one.txt": one}


RAISED = (
    "optcc.runtime.errors.RankFailedError: rank 6 failed: its process has ended, or its connection was cut\n"
    "the call's result buffer is as it was before"
)
"""The end of a traceback."""


def metrics(folder: Path) -> dict[str, bytes]:
    """Recording -> metrics; the files of evidence go to `folder`."""
    found = {}
    for name, files in evidence():
        below = folder / name
        below.mkdir()
        for file, text in files.items():
            (below / file).write_text(text)
        ports = NicDirections(lab({}).cluster)
        made = diagnose(ports.cluster, gather([str(below / file) for file in files], ports))
        found[name] = metrics_text(made, AT_S)
    return found


def main() -> None:
    """Write all of them."""
    import tempfile

    for name, text in slow_job().items():
        (EXAMPLES / "slow-job" / name).write_text(text)
    with tempfile.TemporaryDirectory() as folder:
        for name, data in metrics(Path(folder)).items():
            (EXAMPLES / "monitoring" / f"{name}.prom").write_bytes(data)


if __name__ == "__main__":
    main()
