"""The benchmark of NCCL's algorithms beside ours: what it makes of what ranks and NCCL wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench_nccl as bench

MIB = 1 << 20


def ran(
    tmp_path: Path, contender: str, logged: str, *, exact: bool = True, codes: tuple[int, ...] = (0,) * 4
) -> bench.Ran:
    """A job whose calls took 0.2 s, from one rank's start to another's end."""
    job = next(job for job in bench.jobs(Path("p"), Path("plans")) if job.contender == contender)
    for rank in range(bench.NODES):
        lines = [{"about": "a GPU"}]
        for number, step in enumerate(job.steps):
            for call in range(bench.CALLS if step.kind == "times" else 0):
                about = {"step": number, "call": call, "start": rank / 100, "end": 0.17 + rank / 100}
                lines += [{**about, "nbytes": size, "exact": exact or rank != 2} for size in bench.SIZES]
        (tmp_path / f"out-{rank}").write_text("\n".join(map(json.dumps, lines)))
        (tmp_path / f"err-{rank}").write_text("")
        (tmp_path / f"nccl-{rank}").write_text(logged)
    return bench.read(job, codes, tmp_path)


TAKEN = "NET/optcc: using\nNET/optcc: group of 4 nodes\nNET/optcc: group of 4 nodes: closed after 9 calls, 36.5 MB\n"


def test_times_stand_on_the_page_over_their_bound(tmp_path: Path) -> None:
    found = ran(tmp_path, "our CollNet", TAKEN)
    assert bench.result(found) == "exact"
    text = "\n".join(bench.page([found], 4.0, "this"))
    bound = 1.5 * 256 * MIB / 1e9
    assert f"| healthy | our CollNet | 200 | {0.2 / (1.5 * 16 * MIB / 1e9):.2f} |" in text
    assert f"| 200 | {0.2 / bound:.2f} | exact |" in text


@pytest.mark.parametrize(
    ("contender", "logged", "how", "said"),
    [
        ("our CollNet", TAKEN, {"exact": False}, "WRONG"),
        ("our CollNet", "", {}, "did not take the plugin"),
        ("our CollNet", "NET/optcc: using", {}, "made no group"),
        ("our CollNet", TAKEN.replace("36.5", "0.0"), {}, "no AllReduce went by CollNet"),
        ("stock ring", "", {"codes": (0, 0, 3, 0)}, "ranks ended with 0 0 3 0"),
        ("stock ring", "", {"codes": (0, 0, None, 0)}, "did not end in time"),
    ],
)
def test_what_fails_is_said(tmp_path: Path, contender: str, logged: str, how: dict[str, object], said: str) -> None:
    assert said in bench.result(ran(tmp_path, contender, logged, **how))  # type: ignore[arg-type]


def test_bounds_are_those_of_the_rates() -> None:
    assert bench.bound_s(4.0, (1.0,) * 4, 256 * MIB) == pytest.approx(1.5 * 256 * MIB / 1e9)
    assert bench.bound_s(4.0, bench.slow(3), 256 * MIB) == pytest.approx(2 * 256 * MIB / 1e9)
