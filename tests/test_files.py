"""What is read has a bound, and nothing that is no file is waited for."""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import optcc
from optcc.cli import main
from optcc.errors import InputError
from optcc.files.reading import beginning, read_file
from optcc.plans import files
from optcc.plans.files import load_plan, save_plan
from optcc.schedule import assemble
from optcc.values import json_records
from optcc.values.json_records import MAX_DEPTH, parse
from tests.plan_cases import parts, unlike

PLAN = optcc.plan(optcc.Cluster.uniform(servers=3, nics=1, rate=10**9), 2**20)
PLANS = ["verify", "simulate"]
GRID = "optcc-sweep: 1\ntopologies: ['uniform:servers=2,nics=1,rate=1Gb/s']\nsizes: 1MiB\nquantity: bound\n"


def call(*args: object, input: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args], input=input)


def read(path: str | Path, most: int = 100) -> bytes:
    return read_file(path, most, what="test", expected="a test")


def test_no_more_than_the_bound_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert read(path) == b"x" * 100
    assert beginning(path, 3) == b"xxx"
    with pytest.raises(InputError, match=f"{path}: too large for a test, expected at most 99 bytes"):
        read(path, 99)


@pytest.mark.parametrize("command", [*PLANS, "bound", "topo", "run"])
@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "socket", "loop", "none"])
def test_what_is_no_file_is_refused_at_once(command: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "it"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    elif kind == "loop":
        path.symlink_to(path)
    refused = call(command, path)
    assert (refused.exit_code, refused.stdout) == (2, ""), refused.exception
    asked = "no file" if kind == "folder" and command not in PLANS else "cannot be read"
    assert f"optcc: {path}: {asked}, expected" in refused.stderr
    assert beginning(path, 10) == b""


def test_a_grid_may_be_a_fifo_or_too_large(tmp_path: Path) -> None:
    large = tmp_path / "grid.yaml"
    large.write_text(GRID + "#" * 2**20, encoding="utf-8")
    refused = call("sweep", large, "-o", tmp_path / "t.csv")
    assert refused.exit_code == 2
    assert "too large for a grid" in refused.stderr
    os.mkfifo(tmp_path / "fifo")
    refused = call("sweep", tmp_path / "fifo", "-o", tmp_path / "t.csv")
    assert refused.exit_code == 2
    assert "a FIFO, not a regular file" in refused.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "grid.yaml"]


def test_standard_input_may_be_looked_at_twice(tmp_path: Path) -> None:
    """`sweep` first asks whether it is a grid; with several --servers it reads the topology once for each."""
    done = call("sweep", "-", "-o", tmp_path / "a.csv", "--jobs", 1, input=GRID)
    assert done.exit_code == 0, done.stderr
    one = "optcc: 1\nservers:\n- nics: [{name: a, rate: 1Gb/s}]\n"
    options = ("--servers", "2,3", "--size", "1MiB", "--quantity", "bound", "--jobs", 1)
    done = call("sweep", "-", "-o", tmp_path / "b.csv", *options, input=one)
    assert done.exit_code == 0, done.stderr
    assert len((tmp_path / "b.csv").read_text(encoding="utf-8").splitlines()) == 3
    refused = call("run", "-", "--size", "1MiB", input=PLAN.to_bytes())  # taken for a plan, which has its size
    assert "--size: a plan has its own" in refused.stderr


def test_standard_input_has_a_bound_and_may_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILE", 1000)
    refused = call("verify", "-", input="x" * 1001)
    assert refused.exit_code == 2
    assert "standard input: too large for a plan, expected at most 1000 bytes" in refused.stderr
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="standard input: cannot be read, expected a plan file, got 'it is closed'"):
        load_plan("-")


def test_what_the_shell_has_opened_is_read_as_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `optcc verify <(optcc plan ... -o -)`."""
    out, into = os.pipe()
    with open(into, "wb") as file:
        file.write(PLAN.to_bytes())
    try:
        assert beginning(f"/dev/fd/{out}", 1) == b"P"
        assert load_plan(f"/dev/fd/{out}") == PLAN
    finally:
        os.close(out)


# ---- what a plan file may hold --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * MAX_DEPTH + "]" * MAX_DEPTH, None),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "nested deeper than 32"),
        ('{"a":' * 33 + "1" + "}" * 33, "nested deeper than 32"),
        ("[" * 100_000, "nested deeper than 32"),
        ("9" * 4300, None),
        ("9" * 4301, "a number of more than 4300 digits"),
        ("NaN", "whole numbers"),
        ("-Infinity", "whole numbers"),
        ("1e999999999", "whole numbers"),
        ('{"a":1,"a":1}', "a name twice"),
        ('"\\ud800"', "surrogates not allowed"),
    ],
)
def test_json_that_plans_have(text: str, says: str | None) -> None:
    if says is None:
        parse(text)
        return
    with pytest.raises(ValueError, match=says):
        parse(text)


def test_the_memory_of_a_plan_is_bounded_before_it_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_records, "MAX_PARTS", 100)
    parse("[" + "[]," * 98 + "[]]")
    monkeypatch.setattr(json, "loads", None)  # nothing is parsed
    with pytest.raises(ValueError, match="more than 100 arrays and objects"):
        parse("[" + "{}," * 99 + "{}]")
    monkeypatch.setattr(json_records, "MAX_BYTES", 100)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        parse(" " * 101)


def test_no_plan_is_written_that_would_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.plan"
    save_plan(PLAN, path)
    monkeypatch.setattr(files, "MAX_FILE", path.stat().st_size)
    save_plan(PLAN, path)
    monkeypatch.setattr(files, "MAX_FILE", path.stat().st_size - 1)
    with pytest.raises(InputError, match="too large for a plan, expected at most"):
        save_plan(PLAN, path)
    with pytest.raises(InputError, match="too large for a plan, expected at most"):
        load_plan(path)


def test_messages_do_not_repeat_what_is_long() -> None:
    header, columns = parts(PLAN.to_bytes())
    long = "9" * 10**5
    for wrong in ({"version": long}, {"plan_id": long}, {"family": [long]}, {"nbytes": long}):
        with pytest.raises(InputError) as refused:
            optcc.Plan.from_bytes(unlike({**header, **wrong}, columns))
        assert len(str(refused.value)) < 1000


def test_the_bound_of_transfers_is_where_it_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    count = len(PLAN.schedule())
    monkeypatch.setattr(assemble, "MAX_TRANSFERS", count)
    assert len(replace(PLAN).schedule()) == count
    monkeypatch.setattr(assemble, "MAX_TRANSFERS", count - 1)
    with pytest.raises(InputError, match=f"too many transfers, expected at most {count - 1} transfers, got {count}"):
        replace(PLAN).schedule()
