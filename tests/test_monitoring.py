"""Alert rules and dashboard against recorded metrics: in Prometheus itself where it is installed."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from optcc.reports.metrics import DIAGNOSIS, JOB, PLUGIN, SERVICE
from tests import recordings
from tests.free_port import free_port
from tests.serving import SMALL, running
from tools import dashboard_picture
from tools.prometheus import Prometheus, history, program, samples
from tools.prometheus import running as prometheus_running

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "examples" / "monitoring"
RULES, DASHBOARD = FOLDER / "optcc.rules.yml", FOLDER / "optcc.dashboard.json"
NAME = re.compile(r"\boptcc_\w+")
LIMIT_S = 300

LOST_RANK = "rank 6 failed: its process has ended, or its connection was cut"

FIRES: dict[str, tuple[str, str, list[tuple[dict[str, str], str]]]] = {
    "OptccNicDead": ("dead", "20m", [({"server": "server4", "nic": "nic2"}, "server4/nic2 carries nothing")]),
    "OptccNicDegraded": (
        "degraded",
        "20m",
        [
            ({"server": "server2", "nic": "nic1"}, "server2/nic1 has 25.12% of its rate left"),
            ({"server": "server5", "nic": "nic6"}, "server5/nic6 has 60.06% of its rate left"),
        ],
    ),
    "OptccDrainServer": ("drain", "20m", [({"server": "server3"}, "drain server3")]),
    "OptccRankFailed": (
        "lost",
        "20m",
        [
            (
                {"server": "server6", "rank": "6", "verdict": LOST_RANK},
                f"a job has lost the rank on server6: {LOST_RANK}",
            )
        ],
    ),
    "OptccRingLosesTime": (
        "degraded",
        "20m",
        [({}, "a ring loses 8h 52m 57s more per day than a plan for the degraded cluster")],
    ),
    "OptccFarFromPossible": (
        "degraded",
        "20m",
        [
            (
                {"collective": "all_reduce", "bound": "suspected"},
                "all_reduce reaches 20.83% of what the cluster can do as it is",
            )
        ],
    ),
    "OptccSlowPath": ("path", "20m", [({}, "1 measurements are slow though their NICs are fast elsewhere")]),
    "OptccCannotTell": (
        "thin",
        "20m",
        [({"outcome": "cannot tell"}, "the evidence does not tell which NIC is slow")],
    ),
    "OptccDiagnosisOld": ("healthy", "25h", [({}, "the last diagnosis is 1d 1h 0m 0s old")]),
    "OptccNcclNicLost": (
        "NCCL",
        "20m",
        [({"host": "node3", "nic": "eth1"}, "eth1 of node3 is lost to a job; the job goes on over the others")],
    ),
    "OptccNcclNicComesAndGoes": (
        "NCCL",
        "20m",
        [({"host": "node3", "nic": "eth2"}, "one job has lost eth2 of node3 3 times")],
    ),
    "OptccNcclLinkGivenUp": (
        "NCCL",
        "20m",
        [({"host": "node4"}, "a job on node4 has no way left to another process: its NCCL ends with an error")],
    ),
}
"""Alert -> the recording that it fires on, when, and the labels and summaries that it has then."""


NCCL = """\
optcc_nccl_nic_up{host="node3",process="1",nic="eth1"} 1
optcc_nccl_nic_up{host="node3",process="2",nic="eth1"} 0
optcc_nccl_nic_up{host="node4",process="3",nic="eth1"} 1
optcc_nccl_nic_lost_total{host="node3",process="1",nic="eth1"} 2
optcc_nccl_nic_lost_total{host="node3",process="1",nic="eth2"} 3
optcc_nccl_links_lost_total{host="node3",process="1"} 0
optcc_nccl_links_lost_total{host="node4",process="3"} 1
"""
"""As processes with the plugin write them; `test_nccl_report` holds these names against what it writes."""


def rules() -> dict[str, dict[str, Any]]:
    """The alerts by name."""
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def expressions() -> list[str]:
    """Every query of the rules and of the dashboard."""
    board = json.loads(DASHBOARD.read_text())
    variables = [each["definition"] for each in board["templating"]["list"] if "definition" in each]
    targets = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return [rule["expr"] for rule in rules().values()] + variables + targets


def unknown(queries: list[str]) -> set[str]:
    """Names of metrics, or of labels, that the code does not have."""
    known = {metric.name for metric in (*DIAGNOSIS, *JOB, *SERVICE, *PLUGIN)} | {"optcc_job"}
    return {name for query in queries for name in NAME.findall(query)} - known


def recorded(name: str) -> str:
    return NCCL if name == "NCCL" else (FOLDER / f"{name}.prom").read_text()


def by_series(recording: str) -> dict[tuple[str, ...], float]:
    """(name, labels and their values) -> value."""
    return {
        (name, *(f"{key}={labels[key]}" for key in sorted(labels))): value for name, labels, value in samples(recording)
    }


def test_every_metric_that_is_asked_for_exists() -> None:
    assert len(expressions()) > 15
    assert unknown(expressions()) == set()
    assert unknown(["sum(optcc_slow_path)"]) == {"optcc_slow_path"}


def test_recordings_are_what_optcc_makes_of_the_evidence(tmp_path: Path) -> None:
    """`python -m tests.recordings` writes them anew."""
    slow_job = {path.name: path.read_text() for path in (ROOT / "examples" / "slow-job").iterdir()}
    assert slow_job == recordings.slow_job()
    made = recordings.metrics(tmp_path)
    assert {f"{name}.prom" for name in made} == {path.name for path in FOLDER.glob("*.prom")}
    for name, text in made.items():
        now, kept = by_series(text.decode()), by_series(recorded(name))
        assert kept.keys() == now.keys(), name
        for series, value in now.items():  # a fit that is a little better is no news; what it leaves over moves more
            assert kept[series] == pytest.approx(value, rel=0.5 if "misfit" in series[0] else 0.02), (name, series)


def test_panels_have_places_of_their_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    taken = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(taken) == len(set(taken))
    assert {x for x, _ in taken} == set(range(24))
    assert len({panel["id"] for panel in panels}) == len(panels)
    used = {one["datasource"]["uid"] for panel in panels for one in (panel, *panel["targets"])}
    assert used == {"${datasource}"}


def test_history_is_a_sample_a_minute_and_ends() -> None:
    text = history([('a{b="c"} 1\n', 120), ('a{b="c"} 2\n', 60)], 600)
    told = [f'a{{b="c"}} {value} {at}' for value, at in ((1, 600), (1, 660), (2, 720))]
    assert text.splitlines() == ["# TYPE a gauge", *told, "# EOF"]


def unit_tests(tests: list[dict[str, Any]], folder: Path) -> subprocess.CompletedProcess[str]:
    """promtool's own tests of the rules."""
    path = folder / "tests.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    run = [str(program("promtool")), "test", "rules", str(path)]
    return subprocess.run(run, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def alert_test(alert: str, recording: str, at: str, expected: list[tuple[dict[str, str], str]]) -> dict[str, Any]:
    """`alert` has these labels and summaries at a time, the recording being told again every minute, from 0 on."""
    series = []
    for name, labels, value in samples(recorded(recording)):
        pairs = ",".join(f'{key}="{text}"' for key, text in labels.items())
        value = 0 if name.endswith("_timestamp_seconds") else value
        series.append({"series": f"{name}{{{pairs}}}", "values": f"{value!r}+0x1600"})
    rule = rules()[alert]
    alerts = [
        {
            "exp_labels": {**labels, **rule["labels"]},
            "exp_annotations": {"summary": summary, "description": rule["annotations"]["description"]},
        }
        for labels, summary in expected
    ]
    test = {"eval_time": at, "alertname": alert, "exp_alerts": alerts}
    return {"interval": "1m", "input_series": series, "alert_rule_test": [test]}


@pytest.mark.long
@pytest.mark.prometheus
def test_each_alert_fires_on_its_recording_and_not_on_the_healthy_one(tmp_path: Path) -> None:
    assert FIRES.keys() == rules().keys()
    fire = [alert_test(alert, *case) for alert, case in FIRES.items()]
    quiet = [alert_test(alert, "healthy", "20m", []) for alert in FIRES]
    done = unit_tests(fire + quiet, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for alert, (recording, at, _) in FIRES.items():  # and promtool would notice
        assert unit_tests([alert_test(alert, recording, at, [])], tmp_path).returncode == 1


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A Prometheus that has a recorded day."""
    with prometheus_running(tmp_path_factory.mktemp("day"), free_port(), dashboard_picture.day()) as found:
        yield found


@pytest.mark.prometheus
def test_every_panel_has_something_to_show(day: Prometheus) -> None:
    for panel in dashboard_picture.panels():
        for target in panel["targets"]:
            found = day.over(
                dashboard_picture.expression(target), dashboard_picture.START_S, dashboard_picture.END_S, 300
            )
            assert found, panel["title"]
            assert all(dashboard_picture.legend(target, series) for series in found)
    assert day.over("optcc_nothing", dashboard_picture.START_S, dashboard_picture.END_S, 300) == []


@pytest.mark.prometheus
def test_the_picture_shows_the_dashboard_as_it_is(day: Prometheus, tmp_path: Path) -> None:
    """Its words, figures included; `python -m tools.dashboard_picture` draws it anew."""
    from optcc.study.page import save

    def words(picture: Path) -> list[str]:
        return re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text())

    save(dashboard_picture.draw(day), tmp_path / "new.svg")
    assert "Training time lost per day" in words(tmp_path / "new.svg")
    assert words(tmp_path / "new.svg") == words(ROOT / "docs" / "pictures" / "dashboard.svg")


@pytest.mark.prometheus
def test_prometheus_scrapes_the_service(tmp_path: Path) -> None:
    (tmp_path / "service").mkdir()
    for service in running(tmp_path / "service", "--port", "0", "--metrics"):
        job = service.ask("POST", "/v1/jobs", {"topology": SMALL, "fail": ["server1/nic0"]}).json["job"]
        scrape = {"job_name": "optcc", "static_configs": [{"targets": [service.where.removeprefix("http://")]}]}
        config = yaml.safe_dump(
            {"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape], "rule_files": [str(RULES)]}
        )
        with prometheus_running(tmp_path, free_port(), config=config) as found:
            assert _eventually(found, "optcc_nic_suspected_fraction", {"optcc_job": job, "server": "server1"}) == 0
            groups = found.get("rules")["groups"]
            assert {rule["name"] for group in groups for rule in group["rules"]} == FIRES.keys()


def _eventually(prometheus: Prometheus, name: str, labels: Mapping[str, str]) -> float:
    """The value of a series once it was scraped."""
    import time

    end = time.monotonic() + LIMIT_S
    wanted = ",".join(f'{key}="{text}"' for key, text in labels.items())
    while time.monotonic() < end:
        if found := prometheus.at(f"{name}{{{wanted}}}", time.time()):
            return found[0].points[0][1]
        time.sleep(0.2)
    raise AssertionError(f"{name} was not scraped")


@pytest.mark.prometheus
@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.prom")))
def test_promtool_takes_the_recordings(name: str) -> None:
    def check(text: str) -> subprocess.CompletedProcess[str]:
        run = [str(program("promtool")), "check", "metrics"]
        return subprocess.run(run, input=text, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    done = check(recorded(name))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert check(recorded(name).replace("# TYPE optcc_slow_paths gauge", "# TYPE optcc_slow_paths poem")).returncode


def test_recordings_are_text_that_the_library_reads() -> None:
    for path in FOLDER.glob("*.prom"):
        names = {family.name for family in text_string_to_metric_families(path.read_text())}
        assert names == {metric.name for metric in DIAGNOSIS}
