"""NCCL over played NICs, as far as no GPU is needed: a NIC's PCI device, and a page that hides nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import bench_nccl_played as bench
from benchmarks.nccl_played_rank import hurt
from optcc.fabric.played import PlayedFabric

RESOLVE = (
    "import ctypes, sys; f = ctypes.CDLL(None).realpath; f.restype = ctypes.c_char_p;"
    "print(*(f(name.encode(), None) for name in sys.argv[1:]))"
)


def test_each_played_nic_has_a_pci_device_and_other_paths_stay(tmp_path: Path) -> None:
    made = tmp_path / "place.so"
    subprocess.run(
        ["cc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "benchmarks/nccl_place.c", "-o", made, "-ldl"],
        cwd=Path(__file__).parent.parent, check=True, timeout=60,
    )  # fmt: skip
    base = "/sys/class/infiniband/played_"
    names = ["/", f"{base}0/device", f"{base}1/device", f"{base}0/devices", f"{base}0/device/x"]
    command = [sys.executable, "-c", RESOLVE, *names]
    done = subprocess.run(
        command, env={"LD_PRELOAD": str(made)}, capture_output=True, text=True, timeout=60, check=True
    )
    root, first, second, *others = done.stdout.split()
    assert (root, others) == ("b'/'", ["None", "None"])
    folder = Path("/sys/bus/pci/devices")
    there = {repr(str(path.resolve()).encode()) for path in folder.iterdir()} if folder.exists() else set()
    assert {first, second} <= there if there else first == second == "None"
    assert len({first, second}) == min(2, len(there)) or not there


def ran(tmp_path: Path, *, wrong: bool = False, calls: int = bench.CALLS_BROKEN) -> bench.Ran:
    """A job of which so many calls ended, each from one rank's start at 1 s to another's end at 3.5 s."""
    job = bench.broken("silent", "silent", {})
    for rank in range(bench.NODES):
        about = {"step": 0, "start": 1.0 + rank / 10, "end": 3.2 + rank / 10}
        lines = [{**about, "call": call, "exact": not (wrong and rank == call == 2)} for call in range(calls)]
        (tmp_path / f"out-{rank}").write_text(
            "\n".join(map(json.dumps, [{"about": "a GPU"}, {"struck": 10.0}, *lines]))
        )
        (tmp_path / f"nccl-{rank}").write_text("NCCL version 2.28.9+cuda13.0\n\n[0] x.cc:1 NCCL WARN Got 0xabc\n")
    return bench.read(job, [0.1, 0.2], tmp_path, 7.0, {2: 10.5}, {})


def test_a_call_takes_from_the_first_start_to_the_last_end(tmp_path: Path) -> None:
    found = ran(tmp_path)
    assert found.seconds == {0: [pytest.approx(2.5)] * bench.CALLS_BROKEN}
    assert (found.ended, found.wrong, found.nccl, found.told) == (True, 0, "2.28.9", {2: 0.5})
    assert (
        "goes on; torch tells of NCCL's error on nodes 2, first after 0.5 s; exact |" in bench.breaks_table([found])[2]
    )


@pytest.mark.parametrize(
    ("how", "said"), [({"wrong": True}, "WRONG"), ({"calls": 4}, "call 5 does not end; ")], ids=["wrong", "stuck"]
)
def test_what_is_wrong_or_stuck_is_on_the_page(tmp_path: Path, how: dict[str, int], said: str) -> None:
    found = ran(tmp_path, **how)  # type: ignore[arg-type]
    assert said in bench.breaks_table([found])[2]
    assert said != "WRONG" or "goes on; " in bench.breaks_table([found])[2]
    assert found.ended == (said == "WRONG")


def test_bounds_are_those_of_the_rates_that_are_left(tmp_path: Path) -> None:
    fabric = PlayedFabric.make(tmp_path / "f", hosts=4, nics=2, rate=500_000_000)
    healthy = bench.bound_of(fabric, 2**26)
    hurt(fabric, 500_000_000, [3])
    half = bench.bound_of(fabric, 2**26)
    hurt(fabric, 500_000_000, [])
    fabric.down("host3/mlx5_0", gone=True)
    assert healthy == pytest.approx(1.5 * 2**26 / 1e9)
    assert half == bench.bound_of(fabric, 2**26) == pytest.approx(2 * 2**26 / 1e9)
