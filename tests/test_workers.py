"""A pool of processes: results, errors, deaths, and what is left of it when all is killed at once."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from optcc.machine.workers import processes
from tests.left_behind import gone


def _die() -> None:
    os._exit(3)


def _unsendable() -> object:
    return threading.Lock()


def test_results_errors_and_deaths() -> None:
    with processes(1) as pool:
        assert pool.submit(divmod, 7, 2).result() == (3, 1)
        assert pool.submit(int, "11", base=2).result() == 3
        with pytest.raises(ValueError, match="invalid literal") as caught:
            pool.submit(int, "x").result()
        assert "Traceback" in caught.value.__notes__[0]
        with pytest.raises(TypeError, match="cannot be handed over"):
            pool.submit(_unsendable).result()
        assert len({pool.submit(os.getpid).result() for _ in range(3)}) == 1
        with pytest.raises(BrokenProcessPool):
            pool.submit(_die).result()


def test_what_takes_longer_than_the_limit_is_killed() -> None:
    with processes(1) as pool:
        first = pool.submit(os.getpid).result()
    with processes(1, limit_s=60) as pool:
        assert pool.submit(os.getpid).result() != first
    with processes(1, limit_s=0.2) as pool:
        stuck = pool.submit(time.sleep, 3600)
        with pytest.raises(TimeoutError, match=r"took longer than 0\.2 s"):
            stuck.result()


def test_an_interrupt_gives_up_what_is_under_way() -> None:
    def interrupted() -> None:
        with processes(1) as pool:
            pids.append(pool.submit(os.getpid).result())
            futures.extend((pool.submit(time.sleep, 3600), pool.submit(_die)))
            while not futures[0].running():
                time.sleep(0.01)
            raise KeyboardInterrupt

    pids: list[int] = []
    futures: list[Future[None]] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert isinstance(futures[0].exception(timeout=60), BrokenProcessPool)
    assert futures[1].cancelled()
    assert gone((pids[0],), within_s=60)


POOL = """
import os, time
from optcc.machine.workers import processes
if __name__ == "__main__":
    with processes(2) as pool:
        print(*(pool.submit(os.getpid).result() for _ in range(2)), flush=True)
        pool.submit(time.sleep, 3600).result()
"""
NAMED = """
import multiprocessing, time
if __name__ == "__main__":
    lock = multiprocessing.get_context("spawn").Lock()
    multiprocessing.synchronize.SemLock._cleanup(lock._semlock.name)  # stays mapped
    print(flush=True)
    time.sleep(3600)
"""


def _killed_at_once(code: str, folder: Path) -> tuple[set[str], tuple[int, ...]]:
    """A program that is killed with all of its processes, once it has said their ids: what semaphores with names they
    had then, and these ids."""
    script = folder / "script.py"
    script.write_text(code)
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout
        pids = tuple(map(int, process.stdout.readline().split()))
        maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in (process.pid, *pids))
        os.killpg(process.pid, signal.SIGKILL)
    return set(re.findall(r"/dev/shm/sem\.\S+", maps)), pids


def test_nothing_is_left_of_a_pool_that_is_killed(tmp_path: Path) -> None:
    named, _ = _killed_at_once(NAMED, tmp_path)
    assert named  # so they are seen
    named, pids = _killed_at_once(POOL, tmp_path)
    assert len(pids) == 2
    assert not named
    assert gone(pids, within_s=60)


def test_processes_end_with_a_parent_that_is_killed_alone(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(POOL)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        pids = tuple(map(int, process.stdout.readline().split()))
        process.kill()
    assert gone(pids, within_s=60)
