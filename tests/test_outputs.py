"""Files are written whole or not at all, ``-`` is standard output, and a bad place is told before the work."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import optcc.api
import optcc.files.writing
from optcc.cli import main
from optcc.errors import InputError
from optcc.files.writing import check_place, is_plain, staged, write_file, written

PRESET = "uniform:servers=2,nics=2,rate=1Gb/s"


def call(*args: object, input: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args], input=input)


def fails(code: int) -> Any:
    """A system call that fails with `code`."""

    def call(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return call


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "p.plan"
    path.write_bytes(optcc.plan(optcc.load_topology(PRESET).cluster, 2**20).to_bytes())
    return path


# ---- standard output ------------------------------------------------------------------------------------------------


def test_a_plan_goes_through_pipes(plan_file: Path) -> None:
    made = call("plan", PRESET, "--size", "1MiB", "-o", "-")
    assert (made.exit_code, made.stdout_bytes) == (0, plan_file.read_bytes())
    assert "plan id" in made.stderr  # what people read
    assert "wrote" not in made.stderr
    assert call("verify", "-", input=made.stdout_bytes).stdout.startswith("correct: ")
    assert "simulated" in call("simulate", "-", input=made.stdout_bytes).stdout


@pytest.mark.parametrize("form", ["mscclpp", "perfetto"])
def test_an_export_goes_through_pipes(form: str, plan_file: Path, tmp_path: Path) -> None:
    data = plan_file.read_bytes()
    piped = call("export", "-", "--format", form, "-o", "-", input=data)
    assert call("export", plan_file, "--format", form, "-o", tmp_path / "file").exit_code == 0
    assert (piped.exit_code, piped.stdout) == (0, (tmp_path / "file").read_text(encoding="utf-8"))
    assert "wrote     standard output" in piped.stderr


def test_a_topology_goes_through_pipes() -> None:
    made = call("topo", PRESET, "-o", "-")
    assert made.exit_code == 0
    assert "optcc: 1\n" in made.stdout
    again = call("topo", "-", input=made.stdout)
    assert again.stdout.startswith("read\n  standard input: optcc's own\n")
    assert "no faster than" in call("bound", "-", input=made.stdout).stdout
    assert made.stderr.startswith("read\n")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["plan", PRESET, "-o", "-", "--json"], "-o -, --json: two results on standard output"),
        (["plan", PRESET, "-o", "/dev/stdout", "--json"], "two results on standard output"),
        (["topo", PRESET, "-o", "-", "--json"], "two results on standard output"),
        (["export", "{plan}", "--format", "chakra", "-o", "-"], "-o: several files, expected FILE: a trace for each"),
        (["reproduce", "--quick", "-o", "-"], "-o: several files"),
        (["sweep", PRESET, "-o", "-"], "-: unknown kind of table, expected a name ending in .csv"),
        (["simulate", "{plan}", "--timeline", "-"], "-: unknown kind of timeline, expected a name ending in .svg"),
    ],
)
def test_what_standard_output_cannot_be(args: list[str], says: str, plan_file: Path) -> None:
    refused = call(*(arg.format(plan=plan_file) for arg in args))
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert says in refused.stderr


@pytest.mark.parametrize(
    ("redirected", "says"),
    [
        ([PRESET, ">&-"], "optcc: standard output: closed, expected a place for the result"),
        ([PRESET, ">/dev/full"], "optcc: standard output: cannot be written, expected room on the disk"),
        ([PRESET, "2>&-"], ""),
        ([PRESET, "<&-"], ""),
        (["-", "<&-"], "optcc: standard input: cannot be read"),
        (["-h", ">/dev/full"], "optcc: No space left on device"),
        (["--nonsense", "2>/dev/full"], ""),
    ],
)
def test_standard_streams_that_are_closed_or_full(redirected: list[str], says: str) -> None:
    command = f"{sys.executable} -m optcc bound {' '.join(redirected)}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    works = redirected in ([PRESET, "2>&-"], [PRESET, "<&-"])
    assert done.returncode == (0 if works else 2)
    assert ("no faster than" in done.stdout) == works
    assert done.stderr.startswith(says)
    assert len(done.stderr.splitlines()) == bool(says)


def test_no_file_takes_the_place_of_a_closed_stream() -> None:
    """What a library says on stderr would go into it."""
    code = "import os; from optcc.cli.options import _hold_descriptors as hold; hold(); print(os.open(os.devnull, 0))"
    command = ["bash", "-c", f"{sys.executable} -c '{code}' <&- 2>&-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert int(done.stdout) >= 3


def test_help_that_nobody_reads() -> None:
    """The reader has gone before the command starts: whoever is faster, the command finds nobody."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "optcc", "--help"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writer)
    assert (done.stderr, done.returncode) == ("", 141)


# ---- whole or not at all --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system_call", ["fsync", "replace", "open"])
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.ENOSPC, "room on the disk"),
        (errno.EDQUOT, "room within the disk quota"),
        (errno.EROFS, "a file system that can be written to"),
        (errno.EIO, "a place that may be written to"),
    ],
)
@pytest.mark.parametrize("before", [None, b"before"])
def test_a_failure_leaves_the_place_as_it_was(
    system_call: str,
    code: int,
    expected: str,
    before: bytes | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "file"
    if before is not None:
        path.write_bytes(before)
    with monkeypatch.context() as patched:
        patched.setattr(optcc.files.writing.os, system_call, fails(code))
        with pytest.raises(InputError) as refused:
            write_file(path, b"after")
    assert str(refused.value) == f"{path}: cannot be written, expected {expected}, got {os.strerror(code)!r}"
    assert list(tmp_path.iterdir()) == ([] if before is None else [path])
    assert before is None or path.read_bytes() == before
    write_file(path, b"after")
    assert path.read_bytes() == b"after"


def test_an_error_of_who_writes_leaves_nothing(tmp_path: Path) -> None:
    def write_half() -> None:
        with written(tmp_path / "file") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert list(tmp_path.iterdir()) == []


def test_several_files_appear_together(tmp_path: Path) -> None:
    files = {tmp_path / name: name.encode() for name in "abc"}
    with staged(files) as parts:
        assert [part.read_bytes() for part in parts] == [b"a", b"b", b"c"]
        assert not any(path.exists() for path in files)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files
    with pytest.raises(ZeroDivisionError), staged({tmp_path / "d": b"d"}):
        raise ZeroDivisionError
    assert set(tmp_path.iterdir()) == set(files)


@pytest.mark.long
def test_commands_leave_nothing_on_a_disk_that_fills_up(tmp_path: Path, plan_file: Path) -> None:
    """A limit on the size of files stands for a disk: room for the probe, none for the result."""
    limited = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (4096, 4096)); from optcc.cli import main; main()"
    before = b"what was there"
    for args in (
        ["simulate", str(plan_file), "--timeline", "{}/out.json"],
        ["export", str(plan_file), "--format", "perfetto", "-o", "{}/out.json"],
        ["plan", "uniform:servers=40,nics=8,rate=1Gb/s", "-o", "{}/out.json"],
    ):
        place = tmp_path / args[0]
        place.mkdir()
        (place / "out.json").write_bytes(before)
        command = [
            sys.executable,
            "-B",
            "-c",
            limited,  # a module's bytecode would be cut short, too
            *(arg.format(place) for arg in args),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.splitlines()[-1].startswith(
            f"optcc: {place}/out.json: cannot be written, expected a file sys"
        )
        assert [(path.name, path.read_bytes()) for path in place.iterdir()] == [("out.json", before)]


# ---- places of every kind -------------------------------------------------------------------------------------------


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    real, link, dangling = tmp_path / "folder" / "real", tmp_path / "link", tmp_path / "dangling"
    real.parent.mkdir()
    real.write_bytes(b"before")
    real.chmod(0o640)
    link.symlink_to(real)
    dangling.symlink_to("folder/new")
    write_file(link, b"after")
    write_file(dangling, b"new")
    assert link.is_symlink()
    assert dangling.is_symlink()
    assert (real.read_bytes(), (tmp_path / "folder" / "new").read_bytes()) == (b"after", b"new")
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert len(list(real.parent.iterdir())) == 2


def test_places_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for place, expected in (
        (tmp_path / "none" / "new", "a folder that exists"),
        (tmp_path / "file" / "new", "a folder that exists"),
        (tmp_path, "the name of a file"),
        (tmp_path / "loop", "a place that may be written to"),
        (tmp_path / ("x" * 300), "a place that may be written to"),
        (tmp_path / "nul\0l", "a path"),
    ):
        for attempt in (lambda p=place: check_place(p), lambda p=place: write_file(p, b"x")):
            with pytest.raises(InputError, match="cannot be written") as refused:
                attempt()
            assert refused.value.expected is not None
            assert refused.value.expected.startswith(expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "loop"]


def test_a_bad_place_is_told_before_the_work(tmp_path: Path, plan_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(*_: Any, **__: Any) -> None:
        raise AssertionError("the work has begun")

    monkeypatch.setattr(optcc.api, "plan", work)
    monkeypatch.setattr("optcc.simulation.simulator.simulate", work)
    monkeypatch.setattr("optcc.plans.files.load_plan", work)
    monkeypatch.setattr("optcc.discover.load_topology", work)
    out = tmp_path / "none" / "out.svg"
    for args in (
        ["plan", PRESET, "-o", out],
        ["topo", PRESET, "-o", out],
        ["run", PRESET, "--timeline", out],
        ["simulate", plan_file, "--timeline", out],
        ["export", plan_file, "--format", "mscclpp", "-o", out],
        ["calibrate", PRESET, "-o", out],
        ["calibrate", PRESET, "--picture", out],
    ):
        refused = call(*args)
        assert (refused.exit_code, refused.stdout) == (2, ""), refused.exception
        assert f"{out}: cannot be written, expected a folder that exists" in refused.stderr


def test_a_full_disk_is_told_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = optcc.files.writing._part

    def on_a_full_disk(path: Path) -> tuple[int, Path, Path]:
        number, part, target = real(path)
        os.close(number)
        return os.open("/dev/full", os.O_WRONLY), part, target

    check_place(tmp_path / "new")
    monkeypatch.setattr(optcc.files.writing, "_part", on_a_full_disk)
    with pytest.raises(InputError, match="room on the disk"):
        check_place(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_is_killed_leaves_what_was_there_and_its_part(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from optcc.files import writing as outputs\n"
        "with outputs.written(Path(sys.argv[1])) as file:\n"
        "    file.write(bytes(10**6)); file.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    (tmp_path / "table").write_text("before")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "table")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "table").read_text() == "before"
    (part,) = (path for path in tmp_path.iterdir() if path.name != "table")
    assert part.match(".optcc-*.part")


def test_devices_and_fifos_are_written_to_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(Path("/dev/null"), b"x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(InputError, match="/dev/full: cannot be written, expected room on the disk"):
        write_file(Path("/dev/full"), b"x")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()))
    reader.start()
    check_place(fifo)
    write_file(fifo, b"through it")
    reader.join(60)
    assert read == [b"through it"]
    monkeypatch.setattr(optcc.files.writing, "READER_WAIT_S", 0.0)
    with pytest.raises(InputError, match="somebody who reads it"):
        write_file(fifo, b"nobody reads")
    assert is_plain(fifo)
    assert is_plain(Path("/dev/fd/9"))
    assert not is_plain(tmp_path)
    assert not is_plain(tmp_path / "new")


def test_too_few_descriptors() -> None:
    limited = "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (9, 9)); from optcc.cli import main; main()"
    args = ["sweep", PRESET, "--size", "1MiB", "--fail-count", "1", "--jobs", "2", "-o", "none-is-left.csv"]
    done = subprocess.run([sys.executable, "-c", limited, *args], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    *_, said = done.stderr.splitlines()  # of what could not be opened first, a file or a folder
    assert said.startswith("optcc: ")
    assert said.endswith("too few file descriptors (ulimit -n): Too many open files")
    assert not Path("none-is-left.csv").exists()
