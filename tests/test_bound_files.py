"""`optcc bound --json` proves itself: files that are right pass, forged ones are refused, with and without optcc."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from optcc.cli import main
from optcc.errors import CertificateError, InputError
from optcc.theory import bound_file as files
from optcc.theory.bound_program import BoundProgram
from tests.bound_check_alone import by_stranger
from tests.effort import cases

ROOT = Path(__file__).resolve().parent.parent
PRESET = "uniform:servers=3,nics=2,rate=400Gb/s"
GPUS = "uniform:servers=3,nics=2,rate=400Gb/s,nvlink=450GB/s"
PAIR = "uniform:servers=5,nics=2,rate=400Gb/s"
COMMANDS = {
    "traffic": (PRESET, "--fail", "server1/nic0=0.9"),
    "cut": (PRESET, "--fail", "server1/nic0"),
    "rails": (PRESET + ",fabric=rails", "--fail", "server1/nic0", "--fail", "server2/nic1=1/2"),
    "gpus": (GPUS, "--ranks", "gpu", "--fail", "server1/nic0"),
    "broadcast": (PRESET, "--fail", "server1/nic0", "--collective", "broadcast", "--root", "server2"),
    "repair": (PRESET, "--fail", "server1/nic0", "--repair-first"),
    "costs": (PRESET, "--fail", "server1/nic0", "--alpha", "5us", "--per-chunk", "1us"),
    "postal": (PAIR, "--fail", "server0/nic0", "--size", "1KiB", "--alpha", "5us", "--per-chunk", "1us"),
    "one-hop": (PAIR, "--fail", "server0/nic0", "--size", "64KiB", "--alpha", "5us", "--per-chunk", "1us"),
    "starving": (PAIR, "--fail", "server0/nic0", "--alpha", "5us", "--per-chunk", "1us"),
    "at-once": (PRESET, "--fail", "server1/nic0", "--collective", "reduce-scatter+allgather"),
    "pair": (PAIR, "--fail", "server[0-1]/nic0", "--alpha", "5us", "--per-chunk", "1us"),
}
KINDS = [name for name in COMMANDS if name != "repair"]
UNSEEN = {"format", "version"}
PROOF_ONLY = {"primal", "weight"}
"""Numbers that stand in the way of a proof or do not, and are printed nowhere."""

Place = tuple[str | int, ...]


def call(*args: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args])


@cache
def text_of(name: str) -> str:
    result = call("bound", *COMMANDS[name], "--json")
    assert result.exit_code == 0, result.stderr
    return result.stdout


def leaves(value: Any, place: Place = ()) -> Iterator[Place]:
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, (*place, key))
    else:
        yield place


def forged(text: str, place: Place, draw: random.Random) -> str:
    """The file with something else at `place`, of the same kind."""
    content = json.loads(text)
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = _other(inner[place[-1]], draw)
    return json.dumps(content)


def _other(value: Any, draw: random.Random) -> Any:
    if value is None:
        return draw.choice([1, "x"])
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw.choice([value + 1, value - 1, 2 * value + 1])
    if isinstance(value, float):
        return draw.choice([value / 2, value * 1.0001]) if value else 1e-9
    try:
        return str(Fraction(value) * draw.choice([2, Fraction(1, 2), Fraction(10001, 10000)]) or Fraction(1, 3))
    except ValueError:
        return value + draw.choice(["x", " 2"])


def accepted(text: str) -> bool:
    try:
        files.check_bound_file(text)
    except (CertificateError, InputError):
        return False
    return True


def unnoticed() -> Iterator[tuple[str, Place]]:
    """Of 1,000 forged files those that pass, by the file and the place."""
    draw = random.Random(1)
    places = {
        name: [p for p in leaves(json.loads(text_of(name))) if p[0] not in UNSEEN and not PROOF_ONLY & set(p)]
        for name in COMMANDS
    }
    for _ in range(1000):
        name = draw.choice(list(COMMANDS))
        # Every field as often as any other, however long the columns beside it.
        field = draw.choice(sorted({tuple(k for k in p if isinstance(k, str)) for p in places[name]}))
        place = draw.choice([p for p in places[name] if tuple(k for k in p if isinstance(k, str)) == field])
        if accepted(forged(text_of(name), place, draw)):
            yield name, place


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_printed_proves_itself(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bound.json"
    path.write_text(text_of(name))

    def solve(self: BoundProgram) -> None:
        raise AssertionError("a solver")

    monkeypatch.setattr(BoundProgram, "solve", solve)
    for arguments in (("--check", path), (*COMMANDS[name][:1], *_cluster_options(name), "--check", path)):
        result = call("bound", *arguments)
        assert (result.exit_code, result.stderr) == (0, "")
        assert "checked" in result.stdout
    value = json.loads(call("bound", "--check", path, "--json").stdout)
    assert value["checked"]
    assert value["bound_s"] == json.loads(text_of(name))["bound_s"]


def _cluster_options(name: str) -> tuple[str, ...]:
    """Those of `COMMANDS[name]` that say which cluster it is."""
    given, found = COMMANDS[name][1:], list[str]()
    for option, value in zip(given, (*given[1:], ""), strict=True):
        if option in ("--fail", "--ranks"):
            found += [option, value]
    return tuple(found)


@pytest.mark.long
def test_forged_files_are_refused() -> None:
    assert list(unnoticed()) == []


@pytest.mark.parametrize("field", ["overhead", "fault_free_s", "gap", "bottleneck", "share", "rank"])
def test_a_check_that_passes_a_field_over_is_noticed(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compare: Callable[[Any, Any, str], str | None] = files._difference

    def careless(said: Any, right: Any, place: str) -> str | None:
        return None if field in place.split(".") else compare(said, right, place)

    monkeypatch.setattr(files, "_difference", careless)
    if field == "bottleneck":  # which the proof compares, too
        monkeypatch.setattr(files, "check_bound_with_costs", lambda cluster, found: None)
    assert any(unnoticed())


def test_a_check_without_the_proof_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "check_bound_with_costs", lambda cluster, found: None)
    assert any(unnoticed())


@pytest.mark.parametrize("name", KINDS)
def test_what_is_changed_in_a_proof_is_refused_or_changes_nothing_that_is_printed(name: str) -> None:
    text, draw = text_of(name), random.Random(2)
    places = [p for p in leaves(json.loads(text)) if PROOF_ONLY & set(p)]
    right = files.check_bound_file(text)[1].bound
    refused = 0
    for place in draw.sample(places, min(len(places), cases(200))):
        try:
            _, found = files.check_bound_file(forged(text, place, draw))
        except CertificateError:
            refused += 1
        else:
            assert (found.bound.seconds, found.bound.overhead) == (right.seconds, right.overhead), place
    assert refused or not places


# ---- without optcc --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_the_example_refuses_forged_numbers(name: str) -> None:
    text, draw = text_of(name), random.Random(3)
    assert by_stranger(text) is None
    content = json.loads(text)
    cert = content["certificate"]
    places: list[Place] = [("bound_s",), ("fault_free_s",), ("overhead",), ("size",), ("bound_with_costs_s",)]
    places += [("costs", "alpha_s_exact"), ("costs", "per_chunk_s"), ("costs", "extra_s")]
    costs = content["costs"]["certificate"]
    places += [("costs", "certificate", "bound_with_costs_s_exact")]
    if "arrivals" in costs:
        places += [("costs", "certificate", "arrivals", 0, "servers")]
    places += [("costs", "certificate", name) for name in ("server", "weight", "loss_s_exact") if name in costs]
    lists = ("losses_s_exact", "levels_s_exact")
    places += [("costs", "certificate", name, 0) for name in lists if name in costs]
    if name == "at-once":
        places += [("certificate", "collective")]
    for part in ("certificate", "fault_free"):
        places += [(part, "rate_exact"), (part, "bound_s_exact")]
        if cert["kind"] == "program":
            first = next(i for i, price in enumerate(content[part]["resource_prices"]) if price)
            places += [(part, "resource_prices", first), (part, "denominator"), (part, "reached_exact")]
            places += [(part, "primal", "unit_exact"), (part, "network", "resources", first, "rate_exact")]
            places += [(part, "primal", "flows", 0, "units", 0), (part, "cuts", 0, "inside", 0)]
        else:
            places += [(part, "bytes"), (part, "ports", "out_exact", 0), ("topology", "cluster", 0, "nics", 0, "in")]
    for place in places:
        assert by_stranger(forged(text, place, draw)), place


def test_the_example_says_what_it_does_not_check(tmp_path: Path) -> None:
    for name, lines in (("cut", 2), ("rails", 3)):
        (tmp_path / "b.json").write_text(text_of(name))
        told = subprocess.run(
            [sys.executable, ROOT / "examples/check_bound.py", tmp_path / "b.json"],
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout.splitlines()  # fmt: skip
        assert len(told) == lines
        assert told[0].startswith("right: no faster than")
        assert all(line.startswith("not checked, ") for line in told[1:])


# ---- what else the command is given ---------------------------------------------------------------------------------


def test_from_standard_input() -> None:
    result = CliRunner().invoke(main, ["bound", "--check", "-"], input=text_of("rails"))
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_forged_file_ends_with_1_and_says_where(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text(json.dumps({**json.loads(text_of("cut")), "overhead": 0.25}))
    result = call("bound", "--check", path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "b.json: overhead is 0.25, what proves the bound says 0.5" in result.stderr


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ((PRESET,), "server1 is not as server1 in TOPOLOGY"),
        (("uniform:servers=4,nics=2,rate=400Gb/s", "--fail", "server1/nic0"), "3 servers, not 4"),
        ((PRESET + ",fabric=rails", "--fail", "server1/nic0"), "its fabric"),
    ],
)
def test_a_file_for_another_cluster_ends_with_1(given: tuple[str, ...], why: str, tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text(text_of("cut"))
    result = call("bound", *given, "--check", path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert why in result.stderr


@pytest.mark.parametrize(
    ("content", "options", "why"),
    [
        ("", (), "not JSON"),
        ("[]", (), "not a bound of this version"),
        ('{"bound_s": 1}', (), "not a bound of this version"),
        ('{"format": "optcc-bound", "version": "2"}', (), "not a bound of this version"),
        ('{"format": "optcc-bound", "format": "optcc-bound"}', (), "a name twice"),
        ("{}", ("--size", "1GiB"), "--size: not with --check"),
        ("{}", ("--collective", "allreduce"), "--collective: not with --check"),
        ("{}", ("--repair-first",), "--repair-first: not with --check"),
        ("{}", ("--fail", "server1/nic0"), "nothing to apply them to"),
        ("{}", ("--hosts", "node[1-2]"), "nothing to apply them to"),
    ],
)
def test_what_is_no_such_file_ends_with_2(content: str, options: tuple[str, ...], why: str, tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text(content)
    result = call("bound", "--check", path, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert why in result.stderr


def test_a_topology_or_a_file_is_needed() -> None:
    result = call("bound")
    assert result.exit_code == 2
    assert "Missing argument 'TOPOLOGY'" in result.stderr


@pytest.mark.parametrize("gone", ["topology", "certificate", "fault_free", "size", "overhead", "ranks"])
def test_a_field_that_is_missing_or_not_known_ends_with_1(gone: str) -> None:
    content = json.loads(text_of("gpus"))
    del content[gone]
    with pytest.raises(CertificateError, match=gone):
        files.check_bound_file(json.dumps(content))
    with pytest.raises(CertificateError, match="comment is no field"):
        files.check_bound_file(json.dumps({**json.loads(text_of("gpus")), "comment": "trust me"}))


def test_the_example_of_the_page_by_hand() -> None:
    """docs/certificates.md: prices and weights over 2^38."""
    given = PRESET + ",fabric=rails", "--fail", "server0/nic0", "--fail", "server1/nic0"
    cert = json.loads(call("bound", *given, "--json").stdout)["certificate"]
    called = [resource["what"].split(" (")[0] for resource in cert["network"]["resources"]]
    prices = dict(zip(called, (Fraction(p, 2**38) for p in cert["resource_prices"]), strict=True))
    assert set(prices.values()) == {1, 2}
    assert all(price == (1 if "server2" in what else 2) for what, price in prices.items())
    assert [(cut["seen_from"], cut["inside"], cut["weight"] / 2**38) for cut in cert["cuts"]] == 2 * [
        (0, [0], 4),
        (1, [0], 2),
    ]
    assert cert["denominator"] == 8 * 2**38
    assert cert["rate_exact"] == "37500000000"
