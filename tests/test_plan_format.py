"""The plan file: its schema, its versions, its lowered part, and what both the schema and the reader refuse."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner
from hypothesis import given, reject
from hypothesis import strategies as st

import optcc
from optcc.cli import main
from optcc.cli.schema import plan_schema
from optcc.errors import InfeasibleError, InputError
from optcc.export.chunks import deeper
from optcc.plans.files import MAJOR, MINOR, content_id, load_plan, save_plan
from optcc.plans.lowered import lowered_content
from optcc.plans.plan import Plan
from optcc.schedule.families import FAMILIES
from optcc.values.cluster import Cluster
from tests.conftest import clusters
from tests.effort import examples
from tests.plan_cases import GOLDEN, again, bent, cases, extended, places
from tests.plan_sections import by_rows, by_rules
from tests.test_families import ANY, offered

# Plans travel: the same content gives the same id and schedule, and a changed file is noticed.


@given(cluster=clusters(min_ranks=1, symmetric=False), nbytes=st.integers(1, 2**40))
def test_round_trip(cluster: Cluster, nbytes: int) -> None:
    plan = optcc.plan(cluster, nbytes)
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.plan_id == plan.plan_id


def test_ids_tell_plans_apart() -> None:
    cluster = Cluster.uniform(servers=4, nics=2, rate=1000)
    plans = [
        optcc.plan(cluster, 4096),
        optcc.plan(cluster, 4104),
        optcc.plan(cluster, 4096, segments=3),
        optcc.plan(cluster.degrade("server0/nic0"), 4096),
        optcc.plan(cluster, 4096).baseline("ring"),
    ]
    assert len({p.plan_id for p in plans[:4]}) == 4
    assert plans[0].plan_id == optcc.plan(cluster, 4096).plan_id


def test_a_plan_is_small() -> None:
    cluster = Cluster.uniform(servers=8, nics=8, rate=50_000_000_000).degrade("server1/nic0")
    assert len(optcc.plan(cluster, 2**30).to_json()) < 20_000


@given(data=st.data())
def test_an_edited_plan_is_noticed(data: st.DataObject) -> None:
    raw = json.loads(optcc.plan(Cluster.uniform(servers=4, rate=1000).degrade("server0/nic0", 0.5), 4096).to_json())
    field = data.draw(st.sampled_from(sorted(raw)))
    others = [value for value in (None, 7, "x", [], {}, [0, 0], -1, 1.5) if value != raw[field]]
    raw[field] = data.draw(st.sampled_from(others))
    with pytest.raises(InputError):
        Plan.from_json(json.dumps(raw))


@pytest.mark.parametrize(
    "place", [(), ("bound",), ("cluster", 0), ("cluster", 0, "nics", 1), ("recipe",), ("recipe", "shares", 0)]
)
def test_an_added_field_is_noticed(place: tuple[str | int, ...]) -> None:
    cluster = Cluster.uniform(servers=4, nics=2, rate=1000).degrade("server0/nic0")
    raw = inner = json.loads(optcc.plan(cluster, 4096, family="nested-rings").to_json())
    for step in place:
        inner = inner[step]
    inner["added"] = 1
    with pytest.raises(InputError, match="changed after it was made"):
        Plan.from_json(json.dumps(raw))


@given(text=st.text(max_size=200))
def test_any_text_is_refused_in_words(text: str) -> None:
    with pytest.raises(InputError):
        Plan.from_json(text)


def test_scaled_plan_scales_its_bound() -> None:
    from optcc.values.bound import check_certificate

    plan = optcc.plan(Cluster.uniform(servers=4, nics=2, rate=1000).degrade("server0/nic0"), 4096)
    slow = plan.scaled(plan.bound.seconds / 100)
    check_certificate(slow.cluster, slow.bound)
    assert slow.fluid_s == slow.bound.seconds == 100
    assert slow.bound.overhead == plan.bound.overhead


def test_save_is_whole_or_not_at_all(tmp_path: Path) -> None:
    plan = optcc.plan(Cluster.uniform(servers=3, rate=1000), 4096)
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    with pytest.raises(optcc.OptccError, match="cannot be written"):
        save_plan(plan, tmp_path / "missing" / "plan.json")


def test_segments_follow_the_size() -> None:
    cluster = Cluster.uniform(servers=8, rate=1000)
    assert optcc.plan(cluster, 2**30).recipe.segments == 64
    assert optcc.plan(cluster, 2**20).recipe.segments == 8
    assert optcc.plan(cluster, 100).recipe.segments == 1


@pytest.mark.parametrize("segments", [0, -1, 10**9])
def test_segments_out_of_range(segments: int) -> None:
    with pytest.raises(InputError, match="--segments"):
        optcc.plan(Cluster.uniform(servers=3, rate=1000), 4096, segments=segments)


def test_unknown_baseline() -> None:
    with pytest.raises(InputError, match="unknown algorithm"):
        optcc.plan(Cluster.uniform(servers=3, rate=1000), 4096).baseline("magic")


def test_sizes_and_times_as_text() -> None:
    cluster = Cluster.uniform(servers=4, nics=2, rate="400Gb/s").degrade("server1/nic0")
    assert optcc.lower_bound(cluster, "64MiB") == optcc.lower_bound(cluster, 2**26)
    plan = optcc.plan(cluster, "1MiB", alpha="5us", per_chunk="1us")
    assert plan == optcc.plan(cluster, 2**20, alpha=Fraction(5, 10**6), per_chunk=1e-6)
    schedule = plan.schedule()
    assert optcc.simulate(schedule, alpha="5us").time_s == optcc.simulate(schedule, alpha=5e-6).time_s
    with optcc.Planner(cluster, ["1MiB", 2**10], alpha="5us", per_chunk="1us", background="off") as planner:
        assert planner.sizes == (2**10, 2**20)
        assert planner.plan("1MiB") == planner.current.plans[2**20]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda cluster: optcc.lower_bound(cluster, "1Gib"),
        lambda cluster: optcc.plan(cluster, "much"),
        lambda cluster: optcc.plan(cluster, None),
        lambda cluster: optcc.plan(cluster, 2.5),
        lambda cluster: optcc.plan(cluster, "1MiB", alpha="5"),
        lambda cluster: optcc.plan(cluster, "1MiB", per_chunk="-1us"),
        lambda cluster: optcc.plan(cluster, "1MiB", segments="4"),
        lambda cluster: optcc.simulate(optcc.plan(cluster, "1MiB").schedule(), alpha="5"),
        lambda cluster: optcc.run(optcc.plan(cluster, "1MiB"), local_rate="1Gib"),
        lambda cluster: optcc.Planner(cluster, "much", background="off"),
        lambda cluster: optcc.Planner(cluster, "1MiB", alpha="5", background="off"),
        lambda cluster: cluster.degrade("server0/nic0", "half"),
        lambda cluster: cluster.degrade(0),
    ],
)
def test_other_text_is_refused(wrong: Callable[[Cluster], object]) -> None:
    with pytest.raises(InputError):
        wrong(Cluster.uniform(servers=2, nics=2, rate="400Gb/s"))


def test_reprs_are_a_line() -> None:
    plan = optcc.plan(Cluster.uniform(servers=16, nics=8, rate="400Gb/s").degrade("server1/nic0"), "256MiB")
    family, depth = plan.recipe.family, plan.recipe.segments
    assert repr(plan) == f"<Plan {plan.plan_id}: {family}, {depth} segments, 256MiB per rank, 16 ranks, bound 1.268 ms>"
    assert repr(plan.schedule()).startswith("<Schedule: ")
    on_rails = optcc.load_topology("uniform:servers=4,nics=4,rate=400Gb/s,fabric=rails").cluster.degrade("server1/nic0")
    for value in (plan.schedule(), plan.bound, plan.cluster, optcc.lower_bound(on_rails, "1GiB")):
        assert len(repr(value)) < 300


ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"


@cache
def schema() -> jsonschema.Draft202012Validator:
    text = json.loads(plan_schema())
    jsonschema.Draft202012Validator.check_schema(text)
    return jsonschema.Draft202012Validator(text)


def complaints(content: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in schema().iter_errors(content)]


def refused(content: dict[str, Any]) -> bool:
    """Whether the reader refuses the file, whose id fits what is in it."""
    try:
        Plan.from_json(again(content))
    except InputError:
        return True
    return False


# ---- what optcc writes ----------------------------------------------------------------------------------------------


def test_every_family_is_among_the_cases() -> None:
    assert {plan.recipe.family for plan in cases().values()} == set(FAMILIES)
    assert {plan.bound.certificate.kind for plan in cases().values()} >= {"traffic", "program"}


@examples(6)
@given(cluster=ANY, nbytes=st.integers(1, 2**22), segments=st.integers(1, 4))
def test_plans_of_random_clusters(cluster: Cluster, nbytes: int, segments: int) -> None:
    """They fit the schema, come back, and their channels, by the rules of docs/consume-from-cpp.md, say exactly what
    their transfers say, sums in the same order."""
    try:
        plans = offered(cluster, nbytes, segments)
    except InfeasibleError:
        reject()
    for plan in plans:
        for text in (plan.to_json(), plan.to_json("transfers")):
            content = json.loads(text)
            assert complaints(content) == []
            assert content["plan_id"] == plan.plan_id == content_id(content)
            assert Plan.from_json(text) == plan
        assert by_rules(content["lowered"]) == by_rows(content["lowered"])


@pytest.mark.parametrize("name", cases())
def test_channels_of_every_family(name: str) -> None:
    """The same for clusters that take every family, at several depths and sizes, one too small for all sections."""
    for nbytes, segments in ((40, 1), (4096, 3), (100001, 5)):
        plan = replace(cases()[name], bound=replace(cases()[name].bound, nbytes=nbytes))
        if name == "r2cc-allreduce":
            plan = replace(plan, recipe=replace(plan.recipe, segments=segments, chunks=segments))
        elif name != "inside-servers":
            plan = deeper(plan, segments)
        lowered = lowered_content(plan, "transfers")
        assert complaints({**json.loads(cases()[name].to_json()), "lowered": lowered}) == []
        assert by_rules(lowered) == by_rows(lowered)


@pytest.mark.parametrize("name", ["nested-rings", "trees", "r2cc-allreduce"])
def test_the_comparison_of_channels_can_fail(name: str) -> None:
    lowered = lowered_content(cases()[name], "transfers")
    rows = by_rows(lowered)
    for channel in lowered["channels"]:
        for where in ("owners", "via", "members", "up"):
            if len(set(channel.get(where, ()))) > 1:
                channel[where].reverse()
                assert by_rules(lowered) != rows, where
                channel[where].reverse()
        if "root" in channel:
            channel["root"] ^= 1
            assert by_rules(lowered) != rows
            channel["root"] ^= 1
    assert by_rules(lowered) == rows


@pytest.mark.parametrize("name", cases())
def test_lanes_carry_every_byte_of_every_transfer(name: str) -> None:
    lowered = lowered_content(cases()[name], "transfers")
    lengths = {(r, n) for r, n in zip(lowered["transfers"]["route"], lowered["transfers"]["length"], strict=True)}
    written = {(r, split["length"]) for r, route in enumerate(lowered["routes"]) for split in route["splits"]}
    for channel in lowered["channels"]:
        for segment in channel["segments"] if channel["kind"] == "tree" else ():
            lengths |= {(r, segment["cuts"][1] - segment["cuts"][0]) for r in channel["up"] + channel["down"]}
    assert written == lengths
    for route in lowered["routes"]:
        assert {lowered["ports"][lane["out"]]["rank"] for lane in route["lanes"]} == {route["src"]}
        assert {lowered["ports"][lane["into"]]["rank"] for lane in route["lanes"]} == {route["dst"]}
        for split in route["splits"]:
            assert split["cuts"][0] == 0
            assert split["cuts"][-1] == split["length"]
            assert split["cuts"] == sorted(split["cuts"])


@pytest.mark.parametrize("name", cases())
def test_a_layout_is_all_but_the_transfers(name: str) -> None:
    whole = lowered_content(cases()[name], "transfers")
    layout = {**lowered_content(cases()[name], "layout"), "depth": "transfers"}
    assert layout == {part: value for part, value in whole.items() if part != "transfers"}
    with pytest.raises(InputError, match="no such depth"):
        cases()[name].to_json("all")


def test_too_many_transfers_for_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optcc.plans.lowered.MAX_TRANSFERS", 10)
    with pytest.raises(InputError, match=r"too many transfers.*--lowered layout"):
        cases()["trees"].to_json("transfers")
    assert cases()["trees"].to_json("layout")


# ---- what is refused ------------------------------------------------------------------------------------------------

NESTED = ("nested-rings", "transfers")
TREES = ("packed-trees-rails", "transfers")
GPUS = ("inside-servers", "transfers")
STEPS = ("direct-exchange-one-starves", "transfers")
GROUPS = ("grouped-exchange", "transfers")
FAULTS: list[tuple[tuple[str, str], tuple[str | int, ...], Any]] = [
    (NESTED, ("format",), "other"),
    (NESTED, ("version",), "2.0"),
    (NESTED, ("version",), "1"),
    (NESTED, ("version",), "1.00"),
    (NESTED, ("version",), 1),
    (NESTED, ("family",), "magic"),
    (NESTED, ("family",), "trees"),
    (NESTED, ("nbytes",), -8),
    (NESTED, ("nbytes",), "2000"),
    (NESTED, ("nbytes",), 2000.5),
    (NESTED, ("nbytes",), ...),
    (NESTED, ("recipe", "shares", 0, "share"), "0.5"),
    (NESTED, ("recipe", "shares", 0, "share"), 1),
    (NESTED, ("recipe", "order", 0), True),
    (NESTED, ("recipe", "orderings"), []),
    (NESTED, ("recipe", "orderings", 0), "leaf-last"),
    (NESTED, ("recipe", "segments"), 0),
    (NESTED, ("recipe", "extra"), 1),
    (NESTED, ("bound", "seconds"), "-1"),
    (NESTED, ("bound", "bottleneck"), None),
    (NESTED, ("bound", "certificate", "kind"), "hearsay"),
    (NESTED, ("bound", "certificate", "rate"), 5),
    (NESTED, ("fabric", "rails"), 0),
    (NESTED, ("gpu_ranks",), None),
    (NESTED, ("cluster",), []),
    (NESTED, ("cluster", 0, "name"), "a/b"),
    (NESTED, ("cluster", 0, "nics", 0, "out"), 3000),
    (NESTED, ("cluster", 0, "nics", 0, "rail"), "0"),
    (NESTED, ("cluster", 0, "gpus"), 0),
    (NESTED, ("cluster", 0, "gpus"), 2**70),
    (NESTED, ("lowered", "depth"), "none"),
    (NESTED, ("lowered", "transfers"), ...),
    (NESTED, ("lowered", "transfers", "reduce", 0), 2),
    (NESTED, ("lowered", "routes", 0, "lanes"), []),
    (NESTED, ("lowered", "channels", 0, "kind"), "star"),
    (NESTED, ("lowered", "channels", 0, "segments", 0, "ordering"), "backwards"),
    (NESTED, ("lowered", "ports", 0, "nvlink"), 0),
    (NESTED, ("lowered", "extra"), {}),
    (TREES, ("recipe", "trees", 0, "up"), "1>"),
    (TREES, ("recipe", "trees", 0, "root"), -1),
    (TREES, ("bound", "certificate", "cuts", 0, "side"), "left"),
    (TREES, ("lowered", "channels", 0, "root"), "0"),
    (GPUS, ("recipe", "bundles", 0, "hand_on"), 0),
    (GPUS, ("recipe", "bundles", 0, "inner", "extra"), 0),
    (STEPS, ("recipe", "lanes"), True),
    (STEPS, ("recipe", "lanes"), "yes"),
    (GROUPS, ("recipe",), 7),
]


@pytest.mark.parametrize(("which", "path", "value"), FAULTS, ids=lambda v: str(v)[:50])
def test_schema_and_reader_both_refuse(which: tuple[str, str], path: tuple[str | int, ...], value: Any) -> None:
    content = json.loads(cases()[which[0]].to_json(which[1]))
    assert complaints(content) == []
    assert not refused(content)
    wrong = bent(content, path, value)
    assert complaints(wrong)
    assert refused(wrong)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("recipe", "shares", 0, "share"), "0.5", r'^plan: recipe\.shares\[0\]\.share: .*such as "3/5", got \'0\.5\''),
        (("recipe", "window"), None, r"^plan: recipe\.window: .*a whole number from 0 to 65536, got null"),
        (("cluster", 1, "nics", 0, "out"), 7, r"^plan: cluster\[1\]\.nics\[0\]\.out: .*such as \"3/5\", got 7"),
        (("bound", "certificate", "kind"), "hearsay", r"^plan: bound\.certificate\.kind: .*cut, traffic, trivial"),
        (("pristine", 0, "name"), "x", r"pristine: .*other servers.*servers, pods, NICs and rails as in cluster"),
        (("recipe", "order"), ..., r"^plan: recipe: .*a field 'order', got 'none'"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named_with_its_place(path: tuple[str | int, ...], value: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Plan.from_json(again(bent(json.loads(cases()["nested-rings"].to_json()), path, value)))


@examples(60)
@given(data=st.data())
def test_the_reader_refuses_whatever_the_schema_refuses(data: st.DataObject) -> None:
    """Anything in a plan exchanged for something else, the id made to fit; without that, nothing passes."""
    content = json.loads(cases()[data.draw(st.sampled_from(sorted(cases())))].to_json("transfers"))
    path = data.draw(st.sampled_from(_places(json.dumps(content))))
    others = (None, True, 7, 1, -1, 2**70, "x", "1/2", "1/0", "", [], {}, [0, 0], ...)
    wrong = bent(content, path, data.draw(st.sampled_from(others)))
    if json.dumps(wrong) == json.dumps(content) or "lowered" not in wrong:  # a plan is the same plan without it
        reject()
    with pytest.raises(InputError):
        Plan.from_json(json.dumps(wrong))
    if path != ("plan_id",) and complaints(wrong):
        assert refused(wrong)


@cache
def _places(text: str) -> list[tuple[str | int, ...]]:
    return list(places(json.loads(text)))


@pytest.mark.parametrize("change", [("length", 5, 8), ("deps", 0, 1), ("route", 0, 1), ("src", 3, 1)])
def test_an_edited_lowered_part_is_noticed(change: tuple[str, int, int]) -> None:
    name, place, by = change
    content = json.loads(cases()["nested-rings"].to_json("transfers"))
    content["lowered"]["transfers"][name][place] += by
    with pytest.raises(InputError, match="changed after it was made"):
        Plan.from_json(again(content))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"nbytes": 2000', '"nbytes": 2000, "nbytes": 2000'),
        ('"nbytes": 2000', '"nbytes": 2000.0'),
        ('"nbytes": 2000', '"nbytes": 2e3'),
        ('"nbytes": 2000', '"nbytes": NaN'),
        ('"server0"', '"server\\ud800"'),
    ],
)
def test_json_that_readers_would_take_differently(old: str, new: str) -> None:
    text = cases()["nested-rings"].to_json()
    assert old in text
    with pytest.raises(InputError, match="not JSON"):
        Plan.from_json(text.replace(old, new, 1))


# ---- versions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(cases()))
@pytest.mark.parametrize("depth", [None, "transfers"])
def test_fields_of_a_newer_minor_are_passed_over(name: str, depth: str | None) -> None:
    plan = cases()[name]
    newer = {**extended(json.loads(plan.to_json(depth))), "version": f"{MAJOR}.{MINOR + 1}"}
    assert Plan.from_json(again(newer)) == plan
    with pytest.raises(InputError, match="changed after it was made"):  # the same fields in this version are no plan
        Plan.from_json(again({**newer, "version": f"{MAJOR}.{MINOR}"}))
    with pytest.raises(InputError, match="changed after it was made"):  # and the id is checked in a newer one, too
        Plan.from_json(json.dumps({**newer, "plan_id": "0" * 16}))


@pytest.mark.parametrize(
    ("name", "field", "value"), [("nested-rings", "pace", 0), ("r2cc-allreduce", "channels", None)]
)
def test_a_newer_minor_may_say_what_is_left_out_here(name: str, field: str, value: int | None) -> None:
    content = bent(json.loads(cases()[name].to_json()), ("recipe", field), value)
    assert refused(content)
    assert Plan.from_json(again({**content, "version": f"{MAJOR}.{MINOR + 1}"})) == cases()[name]


def test_a_family_of_a_newer_minor_is_refused_and_says_why() -> None:
    content = {**json.loads(cases()["trees"].to_json()), "family": "magic", "version": f"{MAJOR}.{MINOR + 1}"}
    with pytest.raises(InputError, match=rf"magic.*version {MAJOR}\.{MINOR + 1}: a newer optcc may read it"):
        Plan.from_json(again(content))


@pytest.mark.parametrize(
    ("path", "value"), [(("nbytes",), 2001), (("lowered", "granule"), 16), (("lowered", "channels"), [])]
)
def test_a_newer_minor_must_still_agree_on_what_is_known(path: tuple[str, ...], value: Any) -> None:
    content = {**json.loads(cases()["nested-rings"].to_json("transfers")), "version": f"{MAJOR}.{MINOR + 1}"}
    assert not refused(content)
    assert refused(bent(content, path, value))


@pytest.mark.parametrize(
    "version", [f"{MAJOR + 1}.0", "0.9", "1", "1.", "1.0.0", "01.0", " 1.0", "1.0\n", "1.-1", 1, 2, None]
)
def test_other_majors_and_no_versions_are_refused(version: object) -> None:
    content = {**json.loads(cases()["trees"].to_json()), "version": version}
    with pytest.raises(InputError, match="not a plan of this version"):
        Plan.from_json(again(content))


GOLDENS = sorted(GOLDEN.glob("*/*.plan.json"))


def test_there_are_golden_files_of_this_version() -> None:
    assert {path.name for path in GOLDENS if path.parent.name == f"{MAJOR}.{MINOR}"} == {
        f"{name}.plan.json" for name in cases()
    }


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_published_files_are_read_and_lower_to_the_same_transfers(path: Path) -> None:
    """They have their transfers inside: another lowering of an old recipe would be noticed here."""
    content = json.loads(path.read_text(encoding="utf-8"))
    assert complaints(content) == []
    assert content["lowered"]["depth"] == "transfers"
    assert load_plan(path).plan_id == content["plan_id"]


# ---- examples and commands ------------------------------------------------------------------------------------------

README = (EXAMPLES / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^optcc (plan .* -o examples/(\S+\.plan\.json))$", README.replace("\\\n", " "), re.M)


def test_every_example_has_its_command() -> None:
    assert sorted(name for _, name in COMMANDS) == sorted(path.name for path in EXAMPLES.glob("*.plan.json"))
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize(("command", "name"), COMMANDS, ids=[name for _, name in COMMANDS])
def test_examples_are_what_their_commands_write(command: str, name: str, tmp_path: Path) -> None:
    args = shlex.split(command)
    args[-1] = str(tmp_path / name)
    made = CliRunner().invoke(main, args)
    assert made.exit_code == 0, made.output
    assert (tmp_path / name).read_bytes() == (EXAMPLES / name).read_bytes()
    assert complaints(json.loads((EXAMPLES / name).read_text(encoding="utf-8"))) == []


def test_the_schema_is_printed_and_the_header_is_where_it_says() -> None:
    printed = CliRunner().invoke(main, ["schema"])
    assert printed.exit_code == 0
    assert json.loads(printed.output)["$id"] == f"urn:optcc:plan:{MAJOR}"
    folder = CliRunner().invoke(main, ["schema", "--include"]).output.strip()
    header = (Path(folder) / "optcc_plan.h").read_text(encoding="utf-8")
    assert f"#define OPTCC_PLAN_MAJOR {MAJOR}\n" in header
    assert f"#define OPTCC_PLAN_MINOR {MINOR} " in header


def test_a_lowered_part_needs_a_file() -> None:
    done = CliRunner().invoke(main, ["plan", "uniform:servers=3,nics=1,rate=400Gb/s", "--lowered", "layout"])
    assert done.exit_code == 2
    assert "-o FILE" in done.output


def test_the_page_names_every_field() -> None:
    """docs/plan-format.md and docs/consume-from-cpp.md explain what the schema knows, the schema what recipes are."""
    pages = "".join(
        (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("plan-format.md", "consume-from-cpp.md")
    )
    words = set(re.findall(r"[\w-]+", pages))
    found = json.loads(plan_schema())

    def fields(value: Any) -> dict[str, Any]:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        own = dict(value.get("properties", {})) if isinstance(value, dict) else {}
        return {name: field for part in inner for name, field in fields(part).items()} | own

    def recipes(part: dict[str, Any]) -> dict[str, Any]:
        record = found["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        own = record.get("properties", {})
        return {n: f for each in own.values() for n, f in recipes(each.get("items", each)).items()} | own

    parameters = {n: f for case in found["allOf"] for n, f in recipes(case["then"]["properties"]["recipe"]).items()}
    assert sorted(fields(found).keys() - words - parameters.keys()) == []
    assert [name for name, field in parameters.items() if not field.get("description")] == []
