"""A sweep that is killed (SIGKILL) at any moment: the same command goes on, or says that all is done."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from optcc.errors import InputError
from optcc.study.cells import SweepResult
from optcc.study.journal import Journal, journal_path
from tests.sweeping import ROOT, SMALL, call, swept

LIMIT_S = 240
OPTIONS = ("--size", "1MiB,2MiB", "--fail-count", "0..2", "--quantity", "bound", "--jobs", "1")

KILLED = """\
import os, signal, sys
import optcc.cli.sweep, optcc.files.writing, optcc.study.journal, optcc.study.runner, optcc.study.table

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def before(where, name):
    setattr(where, name, die)

def after(where, name):
    call = getattr(where, name)
    setattr(where, name, lambda *args, **kwargs: (call(*args, **kwargs), die()))

def within(count):
    "In the `count`th addition to the journal, before its end."
    add, done = optcc.study.journal.Journal.add, []
    class Cut(dict):
        def items(self):
            yield from super().items()
            die()
    def cut_off(journal, results):
        done.append(1)
        add(journal, Cut(results) if len(done) == count else results)
    optcc.study.journal.Journal.add = cut_off

exec(sys.argv.pop(1))
sys.argv[0] = "optcc"
from optcc.cli import main
main()
"""

STEPS = {
    "with no journal": "before(optcc.study.journal.Journal, '_begin')",
    "with an empty journal": "before(optcc.study.journal.Journal, 'add')",
    "in a row of the journal": "within(4)",
    "before the table": "before(optcc.study.table, 'write_table')",
    "in the table": "before(optcc.study.table.csv.DictWriter, 'writerows')",
    "before the table has its name": "before(optcc.files.writing.os, 'replace')",
    "when the table has its name": "after(optcc.files.writing.os, 'replace')",
    "before the summary": "before(optcc.cli.sweep, 'emit')",
    "before the journal goes": "before(optcc.study.journal.Journal, 'remove')",
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    out = tmp_path_factory.mktemp("whole") / "t.csv"
    swept(SMALL, "-o", out, *OPTIONS)
    return out.read_bytes()


def killed(step: str, *args: object) -> None:
    command = [sys.executable, "-c", KILLED, step, "sweep", *map(str, args)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("step", STEPS)
def test_the_same_command_goes_on(tmp_path: Path, whole: bytes, step: str) -> None:
    out = tmp_path / "t.csv"
    killed(STEPS[step], SMALL, "-o", out, *OPTIONS)
    assert not out.exists() or out.read_bytes() == whole
    again = swept(SMALL, "-o", out, *OPTIONS)
    assert out.read_bytes() == whole
    assert not journal_path(out).exists()
    computed = f"going on: 6 of 6 rows are in {journal_path(out)}" in again.stderr
    assert computed == (list(STEPS).index(step) >= list(STEPS).index("before the table"))
    assert call(SMALL, "-o", out, *OPTIONS).exit_code == 2  # done, and said so: now it is somebody's table


def test_a_table_that_is_not_the_sweep_s_stays(tmp_path: Path, whole: bytes) -> None:
    """A journal beside it is no leave to replace it: neither somebody's own, nor that of another grid."""
    out = tmp_path / "t.csv"
    killed(STEPS["before the summary"], SMALL, "-o", out, *OPTIONS)
    other = call(SMALL, "-o", out, *OPTIONS[2:], "--size", "1MiB")
    assert (other.exit_code, "--force" in other.stderr) == (2, True)
    assert out.read_bytes() == whole
    out.write_bytes(whole.replace(b"1048576", b"1048577"))
    edited = out.read_bytes()
    refused = call(SMALL, "-o", out, *OPTIONS)
    assert (refused.exit_code, "--force" in refused.stderr) == (2, True)
    assert out.read_bytes() == edited
    out.unlink()
    swept(SMALL, "-o", out, *OPTIONS)
    assert out.read_bytes() == whole


def test_parquet_of_the_same_rows_is_the_same_file(tmp_path: Path) -> None:
    out = tmp_path / "t.parquet"
    killed(STEPS["before the summary"], SMALL, "-o", out, *OPTIONS)
    before = out.read_bytes()
    swept(SMALL, "-o", out, *OPTIONS)
    assert out.read_bytes() == before


def test_a_journal_on_a_full_disk_keeps_what_it_holds(tmp_path: Path) -> None:
    """Standing in for a disk: the most pages that SQLite may take."""
    out = tmp_path / "t.csv"
    with Journal(out, "sweep", SweepResult) as journal:
        journal.add({"first": SweepResult(1.0)})
        journal._rows.execute("PRAGMA max_page_count = 6")
        with pytest.raises(InputError, match="cannot be written") as caught:
            journal.add({str(n): SweepResult(2.0) for n in range(999)})
        assert "room on the disk" in str(caught.value.expected)
        assert caught.value.where == str(journal_path(out))
        assert journal.results == {"first": SweepResult(1.0)}
    with Journal(out, "sweep", SweepResult) as journal:
        assert journal.results == {"first": SweepResult(1.0)}


def test_the_command_says_what_is_short_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standing in for a disk: the process's own limit of a file's size (``ulimit -f``)."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # of modules, which would be cut short
    out = tmp_path / "t.csv"
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (int({}), -1)); "
    limit += "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)"
    command = [sys.executable, "-c", KILLED]
    places = ["-o", str(out), *OPTIONS]
    done = subprocess.run(
        [*command, limit.format(60_000), "sweep", SMALL, *places[:2], "--size", _sizes(40), *places[4:]],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, out.exists()) == (2, False), done.stderr
    assert "cannot be written" in done.stderr
    assert "ulimit -f" in done.stderr
    assert "Traceback" not in done.stderr
    with Journal(out, "sweep", SweepResult) as journal:
        assert len(journal.results) > 2
    again = swept(SMALL, "-o", out, "--size", _sizes(40), *OPTIONS[2:])
    assert "going on" in again.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def _sizes(count: int) -> str:
    return ",".join(f"{n}MiB" for n in range(1, count + 1))


def test_a_new_journal_that_cannot_be_begun_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Journal._begin

    def full(journal: Journal[Any], code: str) -> None:
        journal._rows.execute("PRAGMA max_page_count = 1")
        begin(journal, code)

    monkeypatch.setattr(Journal, "_begin", full)
    refused = call(SMALL, "-o", tmp_path / "t.csv", *OPTIONS)
    assert refused.exit_code == 2
    assert "room on the disk" in refused.stderr
    assert not list(tmp_path.iterdir())


def test_a_folder_that_may_not_be_written_to(tmp_path: Path) -> None:
    for folder in (Path("/proc"), tmp_path / "none"):
        refused = call(SMALL, "-o", folder / "t.csv", *OPTIONS)
        assert refused.exit_code == 2
        assert "cannot be written" in refused.stderr
