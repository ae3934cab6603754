"""What `optcc verify` calls correct is correct: files with structural faults, judged by interpreters of their own."""

from __future__ import annotations

import gzip
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import optcc
from optcc.cli.options import bound_in_words, load_proved
from optcc.errors import CertificateError, InputError, OptccError, VerifyError
from optcc.export import formats
from optcc.export.formats import reader_of
from optcc.plans.files import KINDS
from optcc.plans.plan import Plan
from optcc.simulation.verifier import verify
from optcc.values.cluster import Cluster
from tests.effort import cases
from tests.file_judges import RefusedError, WrongError, judge_chakra, judge_goal, judge_mscclpp, judge_transfers
from tests.file_trees import CHAKRA, GOAL, JSON, FileFormat, Tree, broken
from tests.plan_cases import again, parts
from tests.plan_cases import cases as plans_of_every_family

ORDERS = 6
"""Random orders in which a judge runs a file that is called correct."""
MUTANTS = 500
"""Of all formats together, of which the long tests try an eighth."""


@cache
def plan(servers: int, gpus: bool = False) -> Plan:
    """Two NICs a server, one of them dead; servers or, of two servers, GPUs as ranks."""
    cluster = Cluster.uniform(servers=servers, nics=2, gpus=2, rate=10**9, nvlink_rate=10**10 if gpus else 0)
    if gpus:
        return optcc.plan(replace(cluster.degrade("server0/nic0", Fraction(1, 2)), gpu_ranks=True), 4096, segments=1)
    return optcc.plan(cluster.degrade("server1/nic0"), 1536, segments=1)


def read_again(paths: list[Path]) -> str:
    """What `optcc verify` says of an exported file: what it sums. Raises what it raises."""
    reader = reader_of(paths[-1])
    if reader is None:
        raise InputError("no exported file")
    return reader().sums


def nbytes_of(sums: str) -> int:
    return int(sums.split()[2])


def goal_and_chakra(judge: Callable[[Tree, int, random.Random], None]) -> Callable[[Tree, str, random.Random], None]:
    return lambda tree, sums, rng: judge(tree, nbytes_of(sums), rng)


FORMATS: dict[str, tuple[FileFormat, Callable[[], list[Plan]], Callable[[Tree, str, random.Random], None]]] = {
    "goal": (GOAL, lambda: [plan(3), plan(4)], goal_and_chakra(judge_goal)),
    "chakra": (CHAKRA, lambda: [plan(3), plan(2, gpus=True)], goal_and_chakra(judge_chakra)),
    "mscclpp": (JSON, lambda: [plan(3), plan(2, gpus=True)], lambda tree, _, rng: judge_mscclpp(tree, rng)),
}


@cache
def exported(name: str, folder: Path) -> list[tuple[list[str], list[bytes]]]:
    """Names and contents of the files of each plan."""
    found = []
    for number, made in enumerate(FORMATS[name][1]()):
        done = formats.write(made, name, folder / str(number) / "out", threadblocks=4 if name == "mscclpp" else None)
        found.append(([path.name for path in done.files], [path.read_bytes() for path in done.files]))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("exported")
    for number in range(2):
        (made / str(number)).mkdir()
    return made


def judged(judge: Callable[[random.Random], None], rng: random.Random) -> str:
    """A judge's words, the worst of several orders."""
    for _ in range(ORDERS):
        try:
            judge(rng)
        except (RefusedError, WrongError) as error:
            return f"{type(error).__name__} {error}"
    return ""


@pytest.mark.parametrize("name", FORMATS)
def test_the_judges_agree_on_what_is_written(name: str, folder: Path) -> None:
    """Our own files are right by the other hand, and stand for the same when their trees are written again."""
    form, _, judge = FORMATS[name]
    for names, contents in exported(name, folder):
        paths = [folder / f"again.{each}" for each in names]
        for path, content in zip(paths, form.write(form.parse(contents)), strict=True):
            path.write_bytes(content)
        sums, tree = read_again(paths), form.parse(contents)
        assert not judged(lambda rng, tree=tree, sums=sums: judge(tree, sums, rng), random.Random(name))  # type: ignore[misc]


@pytest.mark.parametrize("name", FORMATS)
def test_mutants_of_exported_files(name: str, folder: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    form, _, judge = FORMATS[name]
    rng = random.Random(f"{name} {request.config.getoption('--hypothesis-seed')}")
    trees = [(names, form.parse(contents)) for names, contents in exported(name, folder)]
    verdicts = Counter[str]()
    for _ in range(cases(MUTANTS // 4)):
        names, whole = rng.choice(trees)
        tree, fault = broken(whole, rng)
        try:
            contents = form.write(tree)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            continue  # it cannot be said in this format
        for path in tmp_path.iterdir():
            path.unlink()
        paths = [tmp_path / each for each in names][: len(contents)]
        for path, content in zip(paths, contents, strict=False):
            path.write_bytes(content)
        try:
            sums = read_again(paths)
        except (InputError, VerifyError) as error:
            verdicts["refused" if isinstance(error, InputError) else "wrong"] += 1
            continue
        verdicts["correct"] += 1
        again = form.parse([path.read_bytes() for path in paths])
        said = judged(lambda rng, tree=again, sums=sums: judge(tree, sums, rng), rng)  # type: ignore[misc]
        assert not said, f"{fault}: called correct, but {said}"
    if verdicts.total() >= 50:  # of GOAL's 38 % are correct: six standard deviations
        assert verdicts["correct"] < 0.75 * verdicts.total(), verdicts


def with_id(tree: Tree) -> bytes:
    """A plan file of this header and these columns, its id right. ValueError where they are no columns."""
    kinds = {name: KINDS[name].replace("S", "S60") for name in KINDS}
    try:
        columns = {name: np.array(column, kinds[name]) for name, column in tree["columns"].items()}
        return again(tree["header"], columns)
    except (TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(error) from error


def least_s(content: dict[str, Any]) -> Fraction | None:
    """The closed form of docs/bounds.md; None where it does not hold."""
    fabric, cluster = content["fabric"], content["cluster"]
    if len(cluster) < 2 or content["gpu_ranks"] or fabric["rails"] or fabric["spine"] or fabric["pod_oversubscription"]:
        return None
    sums = [[sum(Fraction(nic[way]) for nic in server["nics"]) for server in cluster] for way in ("out", "in")]
    terms = [each for rates in sums for each in (1 / min(rates), 2 * (len(cluster) - 1) / sum(rates, Fraction(0)))]
    return content["nbytes"] * max(terms)


def test_mutants_of_plans(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Headers and columns, ids made right: what is read and verified is an AllReduce, and no bound is false."""
    rng = random.Random(f"plans {request.config.getoption('--hypothesis-seed')}")
    made = list(plans_of_every_family().values())
    verdicts, path = Counter[str](), tmp_path / "a.plan"
    for _ in range(cases(MUTANTS // 4)):
        header, columns = parts(rng.choice(made).to_bytes())
        told = {name: [x.decode() if isinstance(x, bytes) else x for x in c.tolist()] for name, c in columns.items()}
        tree, fault = broken({"header": header, "columns": told}, rng)
        try:
            path.write_bytes(with_id(tree))
        except ValueError:
            verdicts["no columns"] += 1
            continue
        try:
            plan = load_proved(path)
            verify(plan.schedule())
        except OptccError as error:
            verdicts[type(error).__name__] += 1
            continue
        verdicts["correct"] += 1
        least = least_s(tree["header"])
        assert least is None or plan.bound.seconds == least, fault
        said = judged(lambda rng, tree=tree: judge_transfers(tree, rng), rng)  # type: ignore[misc]
        assert not said, f"{fault}: called correct, but {said}"
    if verdicts.total() >= 100:
        assert verdicts["InputError"] > verdicts["correct"], verdicts


FALSE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "seconds": lambda bound: bound.update(seconds="5"),
    "seconds and rate": lambda bound: (
        bound.update(seconds=str(Fraction(bound["seconds"]) * 2)),
        bound["certificate"].update(rate=str(Fraction(bound["certificate"]["rate"]) / 2)),
    ),
    "bottleneck": lambda bound: bound.update(bottleneck="the cooling of the hall"),
    "bytes": lambda bound: bound["certificate"].update(nbytes=bound["certificate"]["nbytes"] * 2),
}


@pytest.mark.parametrize("fault", FALSE)
@pytest.mark.parametrize("family", ["nested-rings", "packed-trees-rails", "inside-servers"])
def test_a_false_bound_is_told(family: str, fault: str, tmp_path: Path) -> None:
    """By a closed form and by the program, with servers and GPUs as ranks."""
    header, columns = parts(plans_of_every_family()[family].to_bytes())
    FALSE[fault](header["bound"])
    (tmp_path / "a.plan").write_bytes(again(header, columns))
    with pytest.raises(CertificateError, match=r"a\.plan: the bound in this plan is false"):
        load_proved(tmp_path / "a.plan")


def test_what_is_no_optimum_is_not_called_one(tmp_path: Path) -> None:
    cluster = Cluster.uniform(servers=3, nics=2, rate=10**9).degrade("server1/nic0")
    made = optcc.plan(cluster, 2**20)
    weak = optcc.theory.program_bound(cluster.degrade("server0/nic0", 0.99).fault_free, 2**20)
    assert bound_in_words(made).endswith("the optimum, proved by its certificate")
    assert "a valid lower bound, but not the best known" in bound_in_words(replace(made, bound=weak))
    rails = plans_of_every_family()["packed-trees-rails"]
    assert "a valid lower bound by its certificate; not checked: that none is higher" in bound_in_words(rails)


def test_what_is_no_plan_is_named(tmp_path: Path) -> None:
    (tmp_path / "plan.json.gz").write_bytes(gzip.compress(plan(3).to_bytes()))
    with pytest.raises(InputError, match=r"compressed by gzip.*gunzip -c"):
        reader_of(tmp_path / "plan.json.gz")
    done = formats.write(plan(3), "chakra", tmp_path / "out")
    (tmp_path / "trace").write_bytes(done.files[0].read_bytes())
    with pytest.raises(InputError, match="one rank's Chakra trace by itself"):
        reader_of(tmp_path / "trace")
