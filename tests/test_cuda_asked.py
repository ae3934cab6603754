"""What comes of --device cuda: runs on the command line with twins in the GPUs' place, and refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner

from optcc import plan
from optcc.cli import main
from optcc.errors import InputError
from optcc.runtime.control.job import Job
from optcc.runtime.devices import gpu_memory, memory
from optcc.schedule import Schedule
from optcc.values.cluster import Cluster
from tests.cuda_twin import find_twins

COMMAND = ["run", "uniform:servers=3,nics=2,rate=200Mb/s", "--device", "cuda"]


def made() -> Schedule:
    return plan(Cluster.uniform(servers=2, nics=1, rate=100_000_000), 1 << 16, segments=1).schedule()


@pytest.mark.parametrize("fault", [(), ("--cut", "server1/nic0@0.4")], ids=["whole", "cut"])
def test_on_the_command_line(fault: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    find_twins(monkeypatch)
    done = CliRunner().invoke(main, [*COMMAND, "--size", "1MiB", "--repeat", "1", *fault])
    assert done.exit_code == 0, done.output
    assert "note: ranks " in done.stderr  # share GPUs, or take turns


@pytest.mark.parametrize("transport", ["tcp", "verbs"])
def test_no_nic_is_given_gpu_memory(transport: str) -> None:
    Job({"it": made()}, "float32", "sum", False, device="cuda")
    with pytest.raises(InputError, match="no NIC is given GPU memory yet"):
        Job({"it": made()}, "float32", "sum", False, transport, device="cuda")


def test_there_are_two_kinds_of_memory() -> None:
    with pytest.raises(InputError, match="no such device"):
        Job({"it": made()}, "float32", "sum", False, device="tpu")


def refused() -> int:
    raise gpu_memory.NoDriverError("no NVIDIA driver (libcuda.so.1 is missing)")


@pytest.mark.parametrize(
    ("library", "count", "said"),
    [
        (None, lambda: 1, "cupy is not installed"),
        ("cupy", refused, "no NVIDIA driver"),
        ("cupy", lambda: 0, "the driver has no GPU"),
    ],
)
def test_what_is_missing_is_said(
    library: str | None, count: Callable[[], int], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory.importlib.util, "find_spec", lambda name: library)
    monkeypatch.setattr(gpu_memory, "gpu_count", count)
    with pytest.raises(InputError, match=said):
        memory.check_device("cuda")
    for fault in ((), ("--cut", "server1/nic0@0.4")):
        done = CliRunner().invoke(main, [*COMMAND, "--size", "1MiB", *fault])
        assert done.exit_code == 2, done.output
        assert said in done.stderr
    memory.check_device("cpu")
