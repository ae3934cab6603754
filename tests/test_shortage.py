"""Too few descriptors, too little memory: told before ranks start where that can be known, else by all ranks alike."""

import errno
import re
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from optcc.api import plan
from optcc.cli.options import ADDRESS_SPACE
from optcc.errors import InputError
from optcc.runtime import RankFailedError
from optcc.runtime.control import job
from optcc.runtime.control.job import Job, check_memory
from optcc.runtime.control.launch import Session
from optcc.runtime.control.limits import available_bytes, check_descriptors, provide
from optcc.runtime.errors import TransportError, shortage
from optcc.runtime.native.layout import layout_of
from optcc.runtime.native.wires import shared_bytes
from optcc.values.cluster import Cluster

RUN = ["-m", "optcc", "run", "uniform:servers=6,nics=1,rate=400Gb/s", "--size", "64KiB", "--repeat", "1"]


def small(nics: int) -> Job:
    made = plan(Cluster.uniform(servers=3, nics=nics, rate=10**9), 3 << 12)
    return Job({"optcc": made.schedule()}, "float32", "sum", paced=False)


def run_with(soft: int, hard: int) -> subprocess.CompletedProcess[str]:
    code = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
    code += "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    words = [sys.executable, "-c", code, *RUN]
    return subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.long
def test_too_few_descriptors_are_told_before_ranks_start_and_those_asked_for_are_enough() -> None:
    short = run_with(24, 24)
    assert (short.returncode, short.stdout) == (2, "")
    what = r"too few file descriptors for the process that commands the ranks, expected (\d+) or more, got 24\. "
    (count,) = re.findall(what, short.stderr)
    assert short.stderr.count("\n") == 1
    enough = run_with(24, int(count))  # with a soft limit that has to be raised
    assert enough.returncode == 0, enough.stderr


def test_what_is_asked_for_is_raised_or_refused() -> None:
    check_descriptors(1)
    provide(1)
    with pytest.raises(InputError, match="too few file descriptors for the process that commands the ranks"):
        check_descriptors(1 << 40)
    with pytest.raises(TransportError, match=r"too few file descriptors: [0-9]+ are needed, [0-9]+ may be had"):
        provide(1 << 40)


def test_memory_that_cannot_be_shared_is_the_same_error_on_all() -> None:
    with Session(small(1)) as session:
        assert all(session.run("optcc").exact)
        resource.prlimit(session.pids[0], resource.RLIMIT_FSIZE, (4096, 4096))
        with pytest.raises(
            RankFailedError, match=r"rank 0 failed: too little memory: [0-9.]+ MiB that ranks"
        ) as caught:
            session.adopt(small(4))
        assert caught.value.seen_by == dict.fromkeys(range(3), str(caught.value))


def test_words_for_what_is_short() -> None:
    assert "whole machine" in str(shortage(OSError(errno.ENFILE, "")))
    assert "too little memory" in str(shortage(OSError(errno.ENOSPC, "No space left")))
    assert "too little memory" in str(shortage(MemoryError()))
    assert shortage(OSError(errno.EPERM, "")) is None
    assert shortage(ValueError("12")) is None


def test_memory_for_buffers_and_rings_is_asked_for_before_ranks_start(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = small(2)
    layout = layout_of(asked.schedules)
    needed = 3 * (3 * asked.nbytes + job.PROCESS_BYTES) + shared_bytes(layout)
    monkeypatch.setattr(job, "available_bytes", lambda: needed)
    check_memory(asked, layout, range(3))
    monkeypatch.setattr(job, "available_bytes", lambda: needed - 1)
    check_memory(asked, layout, range(1))  # the other ranks are elsewhere
    with pytest.raises(InputError, match="ranks do not fit into this machine's memory") as caught:
        Session(asked)
    assert "for what is under way" in str(caught.value)


@pytest.mark.parametrize("ranks", [2, 3, 64])
def test_who_will_wait_for_the_processor_is_told_before_ranks_start(ranks: int) -> None:
    """64 ranks send 8 GB a run, which two cores carry in seconds, and NICs of 1 Gb/s each in one."""
    made = plan(Cluster.uniform(servers=ranks, nics=1, rate=125_000_000), 2**26, segments=1)
    asked = Job({"optcc": made.schedule()}, "float32", "sum", True)
    note = job.processor_note(asked, cores=2)
    assert note.startswith("64 ranks need about ") == (ranks == 64)
    assert job.processor_note(asked, cores=ranks * 2) == ""
    assert job.processor_note(replace(asked, paced=False), cores=1) == ""


def test_memory_that_is_available_is_the_least_of_machine_and_cgroups(tmp_path: Path) -> None:
    def put(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    assert available_bytes(tmp_path) is None
    put("proc/meminfo", "MemTotal: 900 kB\nMemAvailable:     800 kB\n")
    assert available_bytes(tmp_path) == 800 << 10
    put("proc/self/cgroup", "4:cpu,memory:/batch/job7\n0::/user/shell\n")
    put("sys/fs/cgroup/user/shell/memory.max", "max\n")
    put("sys/fs/cgroup/user/shell/memory.current", "5\n")
    assert available_bytes(tmp_path) == 800 << 10
    put("sys/fs/cgroup/user/memory.max", "700000\n")
    put("sys/fs/cgroup/user/memory.current", "300000\n")
    put("sys/fs/cgroup/user/memory.stat", "anon 1\ninactive_file 100000\n")
    assert available_bytes(tmp_path) == 500_000
    put("sys/fs/cgroup/memory/batch/memory.limit_in_bytes", "600000\n")
    put("sys/fs/cgroup/memory/batch/memory.usage_in_bytes", "650000\n")
    put("sys/fs/cgroup/memory/batch/memory.stat", "total_inactive_file 60000\n")
    assert available_bytes(tmp_path) == 10_000


def test_too_little_memory_is_told_before_libraries_wait_for_it() -> None:
    def plan(kib: int) -> subprocess.CompletedProcess[str]:
        command = f"ulimit -v {kib}; {sys.executable} -m optcc plan uniform:servers=2,nics=1,rate=1Gb/s --json"
        return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=600)

    refused, enough = plan(400_000), plan(ADDRESS_SPACE >> 10)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        f"optcc: ulimit -v: too little memory, expected at least {ADDRESS_SPACE >> 10} KiB, got '400000 KiB'\n"
    )
    assert enough.returncode == 0, enough.stderr
    assert '"bound_s"' in enough.stdout
