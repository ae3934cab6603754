"""The benchmarks that run NCCL over the plugin: what they make of what ranks and NCCL wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench_nccl as bench
from benchmarks import bench_nccl_training as training

MIB = 1 << 20


def ran(
    tmp_path: Path, contender: str, logged: str, *, exact: bool = True, codes: tuple[int, ...] = (0,) * 4
) -> bench.Ran:
    """A job whose calls took 0.2 s, from one rank's start to another's end."""
    job = next(job for job in bench.jobs(Path("p"), Path("plans"), Path("slow")) if job.contender == contender)
    for rank in range(bench.NODES):
        lines = [{"about": "a GPU"}]
        for number, step in enumerate(job.steps):
            for call in range(bench.CALLS if step.kind == "times" else 0):
                about = {"step": number, "call": call, "start": rank / 100, "end": 0.17 + rank / 100}
                lines += [{**about, "nbytes": size, "exact": exact or rank != 2} for size in bench.SIZES]
            if step.kind == "small":
                lines += [{"step": number, "row": size, "took": (rank + 1) * 1e-4} for size in bench.SMALL]
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
    assert "| our CollNet | nan | 400 | nan | 400 | nan | 400 |" in text


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


# --- training ------------------------------------------------------------------------------------------------------

TRAINED = dict.fromkeys(range(training.NODES), ("before", "after"))
PARTS = {rank: (f"before {rank}", f"after {rank}") for rank in range(training.NODES)}


def test_training_with_equal_parameters_is_well() -> None:
    assert training.verdict(training.Ran(TRAINED, ""), training.Ran(TRAINED, ""), alike=True) == ""
    assert training.verdict(training.Ran(PARTS, ""), training.Ran(PARTS, ""), alike=False) == ""


@pytest.mark.parametrize(
    ("digests", "trouble", "said"),
    [
        ({**TRAINED, 2: ("before", "other")}, "", "ranks differ"),
        (dict.fromkeys(TRAINED, ("before", "other")), "", "other parameters than without faults"),
        ({rank: TRAINED[rank] for rank in (0, 1, 3)}, "", "a rank has no parameters"),
        (dict.fromkeys(TRAINED, ("before", "before")), "", "nothing was trained"),
        (TRAINED, "did not end in time", "did not end in time"),
    ],
)
def test_training_that_went_wrong_is_found(digests: dict[int, tuple[str, str]], trouble: str, said: str) -> None:
    assert training.verdict(training.Ran(TRAINED, ""), training.Ran(digests, trouble), alike=True) == said


@pytest.mark.parametrize(
    ("kind", "codes", "logged", "said"),
    [
        ("DDP", (0,) * 4, "NET/optcc: using mlx5_0, by RDMA\nNIC mlx5_0 is lost; 1 of 2\n", ""),
        ("DDP", (0, None, 0, 0), "NET/optcc: using mlx5_0, by RDMA", "did not end in time"),
        ("DDP", (0, 1, 0, 0), "NET/optcc: using mlx5_0, by RDMA", "ranks ended with (0, 1, 0, 0)"),
        ("DDP", (0,) * 4, "NET/optcc: using lo, by TCP", "NCCL did not take the plugin"),
        ("DDP by CollNet", (0,) * 4, "NET/optcc: using mlx5_0, by RDMA\nclosed after 0 calls", "no AllReduce went by"),
    ],
)  # fmt: skip
def test_how_training_ended_is_read(tmp_path: Path, kind: str, codes: tuple[int], logged: str, said: str) -> None:
    for rank in range(training.NODES):
        (tmp_path / f"nccl-{rank}").write_text(logged)
        (tmp_path / f"digest-{rank}").write_text("before after")
    found = training.read(kind, codes, tmp_path, 7, 1.0)
    assert found.trouble.startswith(said)
    assert bool(found.trouble) == bool(said)
    assert (found.digests, found.losses, found.left) == (TRAINED, 7, training.NODES * ("is lost;" in logged))
