"""Compiled code is compiled once on a machine, by one process, and kept where no other user can change it; or said."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from optcc.machine import kernels
from optcc.machine.kernels import Kernels
from tests.free_port import free_port

ROOT = Path(__file__).resolve().parent.parent
BOUND_S = 120.0
ONCE = "compiling a sum: about 1 s of processor, once on this machine"
OTHER = "another process compiles a sum: about 1 s of processor, once on this machine"
NOWHERE = "compiled code is kept nowhere (File too large): each process makes it anew. NUMBA_CACHE_DIR names a folder"


def _doubled(count: int) -> int:
    return 2 * count


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    return tmp_path / "optcc"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []
    monkeypatch.setattr(kernels, "say", texts.append)
    return texts


def _new() -> Any:
    """The function, as a process has it that has not called it yet."""
    return Kernels("test", "a sum", 1).compiled()(_doubled)


def _file(folder: Path) -> Path:
    (file,) = (path for path in folder.iterdir() if path.suffix != ".lock")
    return file


# Once.


def test_the_first_use_says_that_it_compiles_and_the_second_says_nothing(folder: Path, said: list[str]) -> None:
    first = _new()
    assert (first(2), first(3), said) == (4, 6, [ONCE])
    written = _file(folder).stat().st_mtime_ns
    assert (_new()(5), said) == (10, [ONCE])
    assert _file(folder).stat().st_mtime_ns == written


def test_a_callback_is_kept_as_well(folder: Path, said: list[str]) -> None:
    for _ in range(2):
        made = Kernels("test", "a sum", 1).callback("int64(int64)", _doubled)
        assert (made.ctypes(4), said) == (8, [ONCE])


def test_who_comes_meanwhile_waits_and_does_not_compile(folder: Path, said: list[str]) -> None:
    _new()(1)
    data = _file(folder).read_bytes()
    name = _file(folder)
    name.unlink()
    lock = os.open(folder / "test.lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    said.clear()
    waits = threading.Event()
    answers: list[int] = []

    def append(text: str) -> None:
        said.append(text)
        waits.set()

    kernels.say = append  # type: ignore[assignment]
    late = threading.Thread(target=lambda: answers.append(_new()(21)), daemon=True)
    late.start()
    assert waits.wait(BOUND_S)
    assert (said, answers) == ([OTHER], [])
    name.write_bytes(data)  # the other one is through
    os.close(lock)
    late.join(BOUND_S)
    assert (said, answers) == ([OTHER], [42])


def test_nobody_waits_for_ever(folder: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "LONGEST_S", 0.0)
    folder.mkdir()
    lock = os.open(folder / "test.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert (_new()(4), said) == (8, [ONCE])
    os.close(lock)


def test_the_lock_is_free_afterwards_even_after_a_failure(folder: Path, said: list[str]) -> None:
    _new()(1)
    with pytest.raises(Exception, match="Cannot determine Numba type"):
        _new()({})
    lock = os.open(folder / "test.lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where another has it
    os.close(lock)


@pytest.mark.parametrize("damage", ["empty", "short", "head", "turned", "zeros", "stranger"])
def test_what_is_damaged_is_made_anew(folder: Path, said: list[str], damage: str) -> None:
    _new()(1)
    file = _file(folder)
    whole = file.read_bytes()
    broken = {
        "empty": b"",
        "short": whole[: len(whole) // 2],
        "head": whole[:31],
        "turned": whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:],
        "zeros": bytes(len(whole)),
        "stranger": b"not of ours",
    }[damage]
    file.write_bytes(broken)
    said.clear()
    assert (_new()(4), said) == (8, [ONCE])
    assert kernels.read_kept(file.name, _new()._cache._stamp) is not None  # whole again


def test_what_is_of_other_sources_is_made_anew(folder: Path, said: list[str]) -> None:
    _new()(1)
    said.clear()
    changed = _new()
    changed._cache._stamp += b"# another line"
    assert (changed(4), said) == (8, [ONCE])


WRITES_NOTHING = """
import resource, sys
from tests.test_kernels import _new
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
print(_new()(4), _new()(5))
"""


def test_where_nothing_can_be_kept_it_is_compiled_all_the_same_and_said(folder: Path) -> None:
    """Files may have 64 bytes: like a disk that is full."""
    environment = {**os.environ, "HOME": str(folder), "TMPDIR": str(folder.parent)}
    done = subprocess.run(
        [sys.executable, "-c", WRITES_NOTHING], capture_output=True, text=True, timeout=BOUND_S, env=environment
    )
    assert (done.returncode, done.stdout) == (0, "8 10\n"), done.stderr
    assert done.stderr.splitlines() == [f"optcc: {text}" for text in (ONCE, NOWHERE) * 2]


# Where.


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing is said of places but a home that is there, and temporary folders in `tmp_path`."""
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(kernels, "TEMPORARY", (str(tmp_path / "tmp"),))
    kernels._cache_places.cache_clear()
    yield tmp_path
    kernels._cache_places.cache_clear()


def _private(bare: Path) -> Path:
    return bare / "tmp" / f"optcc-{os.geteuid()}"


def test_the_order_of_places(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels.cache_places() == (bare / "home/.cache/optcc", _private(bare))
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare / "cache"))
    assert kernels.cache_places() == (bare / "cache/optcc", _private(bare))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(bare / "asked" / "for"))
    assert kernels.cache_places() == (bare / "asked/for/optcc", bare / "cache/optcc", _private(bare))
    for place in (bare / "home/.cache", bare / "cache/optcc", _private(bare)):
        assert not place.exists() or stat.S_IMODE(place.stat().st_mode) == 0o700


@pytest.mark.parametrize("home", ["", "nowhere", "/dev/null", "a/relative/one", "/proc/1/nothing"])
def test_without_a_home_a_private_folder_is_taken(bare: Path, monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    monkeypatch.setenv("HOME", home)
    monkeypatch.chdir(bare)
    assert [place for place in kernels.cache_places() if place.is_relative_to(bare)] == [_private(bare)]


def test_no_folder_that_others_can_write_is_taken(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = (bare / "home/.cache/optcc", _private(bare))
    assert kernels.cache_places() == mine
    for place, above in ((mine[0], bare / "home/.cache"), (mine[1], bare / "tmp")):
        rest = tuple(other for other in mine if other != place)
        for spoiled, mode in ((place, 0o777), (place, 0o770), (above, 0o777), (above, 0o770)):
            before = stat.S_IMODE(spoiled.stat().st_mode)
            spoiled.chmod(mode)
            kernels._cache_places.cache_clear()
            assert kernels.cache_places() == rest, (spoiled, oct(mode))
            spoiled.chmod(before)
    mine[0].rmdir()
    mine[0].symlink_to(bare / "home")
    kernels._cache_places.cache_clear()
    assert kernels.cache_places() == mine[1:]
    monkeypatch.setattr(os, "geteuid", lambda: 12345)  # all that is here is of another user, or root's
    assert all(place.lstat().st_uid in (0, 12345) for place in kernels.cache_places())


def test_the_next_folder_takes_what_the_first_cannot(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = kernels.cache_places()
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if path.is_relative_to(first):
            write(path, data[:10])
            raise OSError(28, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    kernels.write_kept("it", b"stamp", b"data")
    assert (kernels.read_kept("it", b"stamp"), kernels.read_kept("it", b"other")) == (b"data", None)
    assert (list(first.iterdir()), [path.name for path in second.iterdir()]) == ([], ["it"])


# A user with neither home nor a folder of the package that can be written, in a container that can only be read.

PLAN = "uniform:servers=4,nics=2,rate=100Gb/s"
COMMANDS = (
    ("plan", PLAN, "--fail", "server1/nic0", "--size", "1MiB", "-o", "plan.json"),
    ("simulate", "plan.json"),
    ("export", "plan.json", "--format", "mscclpp", "-o", "exported.json"),
    ("run", "plan.json", "--repeat", "1"),
    ("sweep", PLAN, "--fail-count", "0..1", "--size", "1MiB", "-o", "table.csv"),
    ("diagnose", "uniform:servers=8,nics=8,rate=400Gb/s", f"{ROOT}/examples/slow-job/job.txt"),
)
"""Each in the folder in which those before it have worked."""
RANK = """
import numpy, optcc
with optcc.Communicator() as comm:
    sums = numpy.full(100_000, comm.rank + 1)
    comm.all_reduce(sums)
assert (sums == 6).all()
"""
RANKS = """
export WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT
for rank in 0 1 2; do RANK=$rank python -c "$CODE" & all="$all $!"; done
for one in $all; do wait $one || exit 1; done
"""
"""A communicator of three ranks, each a process of that user."""
READ_ONLY = """
mount --bind "$1" "$1" && mount -t tmpfs tmpfs /dev/shm && mount -o remount,bind,ro / && cd "$1" && shift && exec "$@"
"""


def _read_only(work: Path) -> list[str]:
    """What makes a command run where only `work` and /dev/shm can be written; as nobody, where that one can run it."""
    space = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    confined = [*space, "sh", "-c", READ_ONLY, "sh", str(work)]
    if subprocess.run([*confined, "true"], check=False, capture_output=True).returncode:
        return []  # not here: then only its environment is bare
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    tried = [*confined, *nobody, "sh", "-c", f"{sys.executable} -c 'import optcc'"]
    able = os.geteuid() == 0 and subprocess.run(tried, check=False, capture_output=True).returncode == 0
    return [*confined, *(nobody if able else [])]


@pytest.mark.long
def test_every_command_works_where_nothing_can_be_written(tmp_path: Path) -> None:
    """The folder for compiled code is empty at first, and stays so."""
    work = tmp_path / "work"
    work.mkdir()
    work.chmod(0o777)
    bare = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    script = "\n".join(f"{sys.executable} -m optcc {' '.join(command)} || exit 1" for command in COMMANDS)
    script += f"\n{sys.executable} -c 'import optcc; optcc.plan(optcc.Cluster.uniform(servers=3, rate=10**9), 4096)'"
    script += RANKS.replace("python", sys.executable)
    bare |= {"CODE": RANK, "PORT": str(free_port())}
    confined = _read_only(work)
    if not confined:
        bare["TMPDIR"] = str(work)
    done = subprocess.run(
        [*confined, "sh", "-c", script], capture_output=True, text=True, timeout=900, check=False, cwd=work, env=bare
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    said = re.findall("optcc: compiling ([^:]*):", done.stderr)
    assert said == []
