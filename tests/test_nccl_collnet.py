"""CollNet of the plugin for NCCL, called as NCCL calls it: all types and operations, plans, NICs that are cut."""

from __future__ import annotations

import ctypes
import random
import re
import subprocess
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from optcc.cli import main
from optcc.errors import InputError, VerifyError
from optcc.export.calls import prepared, programs_of
from optcc.planner.search import choose, merged_nics
from optcc.schedule.columns import Lane, Port, Route, Schedule
from optcc.simulation.verifier import verify
from optcc.theory import lower_bound
from optcc.values.cluster import Cluster
from tests.effort import cases
from tests.native_build import Mutant
from tests.nccl_ranks import ROOT, WARNINGS, Build, Outcome, Ranks, ip, killed, loopback, namespaces, run, shared_build
from tests.test_nccl_plugin import VERSIONS, Table, alone

pytestmark = pytest.mark.cc
SYSTEM_ERROR = 2


@pytest.fixture(scope="module")
def built() -> Build:
    return shared_build()


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plans for 3 and 4 nodes, as they are and with up to two NICs lost."""
    folder = tmp_path_factory.mktemp("plans")
    for servers in (3, 4):
        files, _ = prepared(Cluster.uniform(servers=servers, nics=2, rate=Fraction(10**9)), 2)
        for name, text in files.items():
            (folder / f"{servers}-{name}").write_text(text)
    return folder


def play(built: Build, rates: Sequence[str], plans: Path, **more: Any) -> Outcome:
    """Nodes with these rates, as OPTCC_RATES has them."""
    env = {"OPTCC_PLANS": str(plans), **more.pop("env", {})}
    prefix = [["env", f"OPTCC_RATES={rate}"] for rate in rates]
    return run(built, loopback(len(rates)), prefix=prefix, env=env, **{"calls": 40, **more})


def plans_taken(outcome: Outcome) -> list[str]:
    return re.findall(r"on by (\S+)", outcome.logged[0])


# --- whole runs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_every_table_reduces_exactly(built: Build, version: int) -> None:
    """All types and operations, odd sizes, in place and not, windows of AllGathers and ReduceScatters; two groups at
    once; 8 calls in flight each. Without plans: by a ring."""
    outcome = run(built, loopback(2 + version % 3), version=version, seed=version, calls=40)
    assert not outcome.fault
    assert set(plans_taken(outcome)) == {"ring"}


@pytest.mark.parametrize(
    ("rates", "plan"),
    [
        (["8,8"] * 3, "3-now.plan"),
        (["8,8", "4,4", "8,8"], "3-0001.plan"),
        (["8,8", "8,8", "8,8", "4,4"], "4-0001.plan"),
        (["4,4", "8,8", "8,8", "3.8,4.4"], "4-0002.plan"),
        (["8,8", "8,8", "8,8", "1,1"], "ring"),
    ],
)
def test_rates_say_which_plan(built: Build, plans: Path, rates: list[str], plan: str) -> None:
    """And a plan with slow nodes has shorter windows."""
    outcome = play(built, rates, plans, seed=len(rates))
    assert not outcome.fault
    assert set(plans_taken(outcome)) == {plan}
    window = 512 if plan in ("3-now.plan", "ring") else 256
    assert all(f"on by {plan} (windows of {window} KiB)" in log for log in outcome.logged)


@pytest.mark.parametrize("rates", [["8,8", "4,4", "8,8"], ["8,8", "8,8", "8,8", "4,4"], ["8,8"] * 2])
def test_connections_that_break_lose_nothing(built: Build, plans: Path, rates: list[str]) -> None:
    cuts, seed = 0, 1
    while cuts < 6:
        outcome = play(built, rates, plans, seed=seed, cuts=20, calls=80)
        assert not outcome.fault, f"seed {seed}"
        cuts += outcome.cuts
        seed += 1


@pytest.mark.long
def test_many_connections_break(built: Build, plans: Path) -> None:
    cuts = seed = 0
    while cuts < cases(500):
        rates = random.Random(seed).choices(["8,8", "4,4"], k=2 + seed % 4)
        outcome = play(built, rates, plans, seed=seed, cuts=25, calls=150, version=VERSIONS[seed % 5])
        assert not outcome.fault, f"seed {seed}"
        cuts += outcome.cuts
        seed += 1


@pytest.mark.namespaces
def test_a_cable_that_is_pulled_changes_the_plan(built: Build, plans: Path) -> None:
    """Node 2 sees that it has lost a NIC, and all go on by the plan for that; a group made later begins by it."""
    with namespaces(4) as names:
        prefix = [["ip", "netns", "exec", name, "env", "OPTCC_RATES=8,8"] for name in names[:-1]]
        env = {"OPTCC_PLANS": str(plans)}
        with Ranks(built, ["r0,r1"] * 4, calls=400, connections=1, prefix=prefix, env=env) as played:
            log = played.folder / "log.0"
            while "on by" not in log.read_text(encoding="utf-8"):
                time.sleep(0.01)
            ip("-n", names[-1], "link", "set", "v2r1", "down")
            outcome = played.outcome()
    assert not outcome.fault
    taken = plans_taken(outcome)
    assert (taken[0], taken[-1]) == ("4-now.plan", "4-0001.plan")
    assert taken.count("4-0001.plan") >= 2


def test_a_node_that_is_killed_is_an_error_at_the_others(built: Build) -> None:
    killed(built, "] calls", calls=10**6)


def test_nodes_with_other_plans_make_no_group(built: Build, plans: Path, tmp_path: Path) -> None:
    """All of them say so, at once: NCCL goes on without CollNet."""
    (tmp_path / "now.plan").write_text((plans / "3-now.plan").read_text())
    prefix = [["env", f"OPTCC_PLANS={tmp_path if rank == 1 else plans}"] for rank in range(3)]
    begun = time.monotonic()
    outcome = run(built, loopback(3), prefix=prefix, calls=10, env={"OPTCC_CONNECT_S": "100"})
    assert time.monotonic() - begun < 90
    assert outcome.told == [f"wrong: connect of CollNet returned {SYSTEM_ERROR}"] * 3
    assert "OPTCC_PLANS has other plans" in "".join(outcome.logged)


# --- plans that are none -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def believes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that says what the plugin thinks of folders of plans."""
    made = tmp_path_factory.mktemp("judge") / "nccl_plans"
    native = ROOT / "native"
    sources = [ROOT / "tests" / "nccl_plans.c", native / "nccl" / "plans.c"]
    sources += [native / f"{name}.c" for name in ("program", "reduce", "hmac")]
    command = ["cc", *WARNINGS, "-O1", f"-I{native}", *map(str, sources), "-o", str(made), "-lm", "-ldl"]
    subprocess.run(command, check=True, timeout=300)
    return made


def judged(believes: Path, folder: Path, texts: Sequence[str]) -> list[str]:
    places = []
    for number, text in enumerate(texts):
        place = folder / str(number)
        place.mkdir(parents=True)
        (place / "now.plan").write_text(text)
        places.append(str(place))
    done = subprocess.run([believes, *places], capture_output=True, text=True, check=True, timeout=280)
    return done.stdout.splitlines()


def schedules(text: str) -> list[Schedule]:
    """The programs of a file, read without the plugin."""
    lines = iter(text.splitlines())
    next(lines)
    nodes = int(next(lines).split()[1])
    next(lines)
    found = []
    pairs = [(a, b) for a in range(nodes) for b in range(nodes) if a != b]
    ports = tuple(Port(f"p{node}", node, 1.0, 1.0) for node in range(nodes))
    routes = tuple(Route(a, b, (Lane(a, b, Fraction(1)),)) for a, b in pairs)
    for _ in range(int(next(lines).split()[1])):
        _, rows, cuts = next(lines).split()
        split = [next(lines).split() for _ in range(int(rows))]
        deps = [[int(dep) for dep in one[5:]] for one in split]
        first, last = (8 * np.array([int(one[at]) for one in split], np.int64) for at in (2, 3))
        found.append(
            Schedule(
                nodes,
                8 * int(cuts),
                ports,
                routes,
                route=np.array([pairs.index((int(one[0]), int(one[1]))) for one in split], np.int32),
                offset=first,
                length=last - first,
                reduce=np.array([one[4] == "+" for one in split]),
                stage=np.ones(len(split), np.uint8),
                segment=np.zeros(len(split), np.int32),
                dep_ptr=np.concatenate(([0], np.cumsum([len(one) for one in deps]))).astype(np.int64),
                dep_idx=np.array([dep for one in deps for dep in one], np.int64),
            )
        )
    return found


def bent(text: str, draw: random.Random) -> str:
    """One transfer changed: another node, another end, another kind, a wait less, or two in another order."""
    lines = text.splitlines()
    rows = [number for number, line in enumerate(lines) if line[0].isdigit()]
    at = draw.choice(rows)
    fields = lines[at].split()
    what = draw.choice(["src", "dst", "first", "last", "kind", "wait", "swap", "gone"])
    if what in ("src", "dst", "first", "last"):
        fields[("src", "dst", "first", "last").index(what)] = str(draw.randrange(8))
    elif what == "kind":
        fields[4] = "=" if fields[4] == "+" else "+"
    elif what == "wait" and len(fields) > 5:
        fields.pop(draw.randrange(5, len(fields)))
    lines[at] = " ".join(fields)
    if what == "swap" and at + 1 in rows:
        lines[at], lines[at + 1] = lines[at + 1], lines[at]
    if what == "gone":
        del lines[at]
    return "\n".join(lines) + "\n"


def test_a_plan_that_is_no_allreduce_is_not_believed(believes: Path, plans: Path, tmp_path: Path) -> None:
    """Of plans with a transfer changed only those pass that our own check takes, too."""
    draw = random.Random(1)
    texts = []
    for _ in range(300):
        texts.append(bent((plans / draw.choice(["3-now.plan", "3-0001.plan", "4-0001.plan"])).read_text(), draw))
    verdicts = judged(believes, tmp_path, texts)
    assert len(verdicts) == len(texts)
    for text, verdict in zip(texts, verdicts, strict=True):
        if verdict == "good":
            for one in schedules(text):
                verify(one)  # raises for one that is none
    refused = [verdict for verdict in verdicts if verdict != "good"]
    assert len(refused) > 200
    for told in ("does not wait for transfer", "is added twice", "not what stands here", "without the number"):
        assert any(told in verdict for verdict in refused), told


def test_plans_that_are_written_are_believed_and_are_allreduces(believes: Path, plans: Path, tmp_path: Path) -> None:
    texts = [path.read_text() for path in sorted(plans.iterdir())]
    assert judged(believes, tmp_path, texts) == ["good"] * len(texts)
    for text in texts:
        for one in schedules(text):
            verify(one)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("optcc-plan 1", "optcc-plan 2"),
        ("nodes 3", "nodes 65"),
        ("rates 500", "rates 0"),
        ("programs 2", "programs 0"),
        ("programs 2", "programs 99999999999999999999"),
        ("program 8 2", "program 4097 2"),
        ("program 8 2", "program 8 0"),
        ("\nend", "\nend\nend"),
        ("end\n", ""),
        ("end\n", "end\0\n"),
    ],
)
def test_a_broken_file_is_named(believes: Path, plans: Path, tmp_path: Path, old: str, new: str) -> None:
    text = (plans / "3-0001.plan").read_text()
    assert old in text
    (verdict,) = judged(believes, tmp_path, [text.replace(old, new, 1)])
    assert "now.plan" in verdict


def test_an_empty_folder_stops_the_job(built: Build, tmp_path: Path) -> None:
    outcome = run(built, ["127.0.0.1"], env={"OPTCC_PLANS": str(tmp_path)})
    assert outcome.told == ["wrong: init"]
    assert "no plans there" in outcome.logged[0]


def test_rates_that_do_not_fit_stop_the_job(built: Build) -> None:
    outcome = run(built, ["127.0.0.1"], env={"OPTCC_RATES": "4,4"})
    assert "expected Gb/s for each of 1 NICs" in outcome.logged[0]


# --- writing them --------------------------------------------------------------------------------------------------


def test_a_cycle_carries_what_the_plan_carries() -> None:
    """Programs together have every byte of the plan once, and each is an AllReduce by itself."""
    cluster = merged_nics(Cluster.uniform(servers=4, nics=2, rate=Fraction(10**9)).degrade("server1/nic0"))
    schedule = choose(cluster, lower_bound(cluster, 1 << 22), segments=3).lower(cluster, 1 << 22)
    parts = list(programs_of(schedule))
    assert len(parts) == 3
    assert sum(part.nbytes for part in parts) == schedule.nbytes
    assert sum(map(len, parts)) == len(schedule)
    with pytest.raises(VerifyError):
        verify(parts[0].replace(dep_ptr=np.zeros(len(parts[0]) + 1, np.int64), dep_idx=np.zeros(0, np.int64)))


def test_the_command_writes_plans(tmp_path: Path) -> None:
    topology = "uniform:servers=4,nics=8,rate=400Gb/s"
    folder = tmp_path / "plans"
    arguments = ["nccl", "--prepare", topology, "--fail", "server1/nic0", "-o", str(folder)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.stderr
    assert "now.plan: 3 x 100 %, 1 x 87.5 %" in done.stdout
    assert sorted(path.name for path in folder.iterdir())[-1] == "now.plan"
    again = CliRunner().invoke(main, arguments)
    assert again.exit_code == 2
    assert "not empty" in again.stderr
    env = CliRunner().invoke(main, ["nccl", "--env", "--plans", str(folder)])
    assert "NCCL_COLLNET_ENABLE=1" in env.stdout or "no plugin" in env.stderr
    assert f"OPTCC_PLANS={folder}" in env.stdout or "no plugin" in env.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--prepare", "uniform:servers=4,nics=2,rate=4Gb/s"],
        ["--plans", "."],
        ["--fail", "server1/nic0"],
        ["--path", "--prepare", "uniform:servers=4,nics=2,rate=4Gb/s", "-o", "x"],
    ],
)
def test_options_that_do_not_go_together(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, ["nccl", *arguments]).exit_code == 2


def test_clusters_that_rates_do_not_describe_are_refused() -> None:
    with pytest.raises(InputError, match="how many servers"):
        prepared(Cluster.uniform(servers=65, nics=1, rate=Fraction(10**9)), 0)
    _, large = prepared(Cluster.uniform(servers=32, nics=8, rate=Fraction(10**9)), 2)
    assert large


# --- the tuner -----------------------------------------------------------------------------------------------------

ALGORITHMS, PROTOCOLS, SIMPLE, CHAIN, DIRECT = 7, 3, 2, 3, 2
BROADCAST, ALLREDUCE = 0, 4


def tuned(plugin: Path, version: int, function: int, nbytes: int) -> list[float]:
    """The table of costs after the tuner has seen one in which everything costs 5, and CollNet 1."""
    words = (ctypes.c_void_p * 4).in_dll(ctypes.CDLL(str(plugin)), f"ncclTunerPlugin_v{version}")
    context, channels = ctypes.c_void_p(), ctypes.c_int(0)
    if version == 4:
        begin = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p)
        assert begin(words[1] or 0)(8, 4, None, ctypes.byref(context)) == 0
    else:
        begin = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_size_t,
                                 ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)  # fmt: skip
        assert begin(words[1] or 0)(ctypes.byref(context), 7, 8, 4, None, None, None) == 0
    costs = (ctypes.c_float * (ALGORITHMS * PROTOCOLS))(*[5.0] * ALGORITHMS * PROTOCOLS)
    for algorithm in (DIRECT, CHAIN):
        for protocol in range(PROTOCOLS):
            costs[algorithm * PROTOCOLS + protocol] = 1.0 if protocol == SIMPLE else -1.0
    tune = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p,
                            ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)  # fmt: skip
    made = tune(words[2] or 0)(context, function, nbytes, 1, costs, ALGORITHMS, PROTOCOLS, 0, ctypes.byref(channels))
    assert made == 0
    assert ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(words[3] or 0)(context) == 0
    assert all(cost == 5.0 for at, cost in enumerate(costs) if at // PROTOCOLS not in (DIRECT, CHAIN))
    return list(costs)


@pytest.mark.parametrize(
    ("when", "degraded", "function", "nbytes", "takes"),
    [
        ("", True, ALLREDUCE, 64 << 20, True),
        ("auto", False, ALLREDUCE, 64 << 20, False),
        ("always", False, ALLREDUCE, 64 << 20, True),
        ("always", False, ALLREDUCE, 65536, False),
        ("always", False, BROADCAST, 64 << 20, False),
        ("never", True, ALLREDUCE, 64 << 20, False),
    ],
)
@pytest.mark.parametrize("version", [4, 5])
def test_collnet_is_taken_where_it_should(
    built: Build, plans: Path, tmp_path: Path, version: int, when: str, degraded: bool, function: int, nbytes: int,
    takes: bool,
) -> None:  # fmt: skip
    (tmp_path / "now.plan").write_text((plans / ("4-0001.plan" if degraded else "4-now.plan")).read_text())

    def child(table: Table) -> None:
        table.start()
        costs = tuned(built.plugin, version, function, nbytes)
        chain = costs[CHAIN * PROTOCOLS + SIMPLE]
        assert (chain == 0.0) if takes else (chain == -1.0)
        assert takes or all(cost == -1.0 for cost in costs[DIRECT * PROTOCOLS : (CHAIN + 1) * PROTOCOLS])
        assert min(cost for cost in costs if cost >= 0) == (0.0 if takes else 5.0)

    alone(child, built, OPTCC_PLANS=str(tmp_path), OPTCC_COLLNET=when)


# --- bugs that must be found, sanitizers -----------------------------------------------------------------------------


def groups(old: str, new: str) -> Mutant:
    return Mutant("nccl/groups.c", old, new)


MUTANTS = {
    "the least is taken for the most": groups("[NCCL_MAX] = OPTCC_MAX", "[NCCL_MAX] = OPTCC_MIN"),
    "what comes early is forgotten": groups("    *last = e;\n    return 1;", "    free(e);\n    return 1;"),
    "an AllGather lacks what is our own": groups("if (c->to + at != c->from && own)", "if (0 && own)"),
    "a ReduceScatter gives the beginning": groups(
        "memcpy(c->to, c->scratch + at, own);", "memcpy(c->to, c->scratch, own);"
    ),
    "a call ends before its last sums": groups(
        "if (done == rows && !c->sending)", "if (done + 1 >= rows && !c->sending)"
    ),
}  # fmt: skip


def found(mutant: str, folder: Path) -> bool:
    built = Build.wrong(folder, MUTANTS[mutant])
    outcome = run(built, loopback(3), calls=150, env={"HARNESS_LIMIT_S": "30", "OPTCC_RETURN_S": "5"})
    return bool(outcome.fault)


def test_a_wrong_operation_is_found(tmp_path: Path) -> None:
    assert found("the least is taken for the most", tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("mutant", sorted(MUTANTS))
def test_a_mutant_is_found(mutant: str, tmp_path: Path) -> None:
    assert found(mutant, tmp_path)


@pytest.mark.parametrize("kind", ["address,undefined", pytest.param("thread", marks=pytest.mark.long)])
def test_sanitizers_find_nothing(plans: Path, kind: str) -> None:
    built = shared_build(kind)
    outcome = play(built, ["8,8", "4,4", "8,8"], plans, cuts=15, env={"OPTCC_RETURN_S": "100"})
    assert not outcome.unsound
