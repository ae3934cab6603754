"""`optcc serve --metrics`: what Prometheus is told of the service and of its jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

import optcc
from optcc.cli import main
from optcc.reports import metrics
from tests.serving import SMALL, Service, check, running, told

Series = dict[tuple[str, ...], float]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    yield from running(tmp_path_factory.mktemp("serve"), "--port", "0", "--metrics")


@pytest.fixture
def job(service: Service) -> Iterator[str]:
    made = service.ask("POST", "/v1/jobs", {"topology": SMALL, "sizes": ["1MiB", "1GiB"], "exposed": "50%"})
    name = made.json["job"]
    yield name
    service.ask("DELETE", f"/v1/jobs/{name}")


def scrape(service: Service, job: str = "") -> Series:
    """(name, values of labels but the job's, in the order of their names) -> value, of this job or of no job."""
    reply = service.ask("GET", "/metrics")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    found: Series = {}
    for family in text_string_to_metric_families(reply.body.decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            if labels.pop(metrics.JOB_LABEL, "") == job:
                found[sample.name, *(labels[key] for key in sorted(labels))] = sample.value
    return found


def event(service: Service, job: str, what: str, nic: str, rate: str | None = None, status: int = 200) -> None:
    body = {"event": what, "nic": nic, **({"rate": rate} if rate else {})}
    reply = service.ask("POST", f"/v1/jobs/{job}/events", body)
    assert reply.status == status, reply.body


def test_a_whole_cluster_costs_nothing(service: Service, job: str) -> None:
    assert scrape(service, job) == {("optcc_unavoidable_overhead_ratio",): 0, ("optcc_job_events",): 0}
    assert scrape(service)["optcc_serve_jobs",] == 1


def test_events_are_told_with_what_they_cost(service: Service, job: str) -> None:
    event(service, job, "rate", "server1/nic1", "100Gb/s")
    found = scrape(service, job)
    bound = optcc.lower_bound(optcc.load_topology(SMALL).cluster.degrade("server1/nic1", 0.25), 2**30)
    assert found["optcc_nic_suspected_fraction", "nic1", "server1", "certain"] == 0.25
    assert found["optcc_unavoidable_overhead_ratio",] == pytest.approx(float(bound.overhead))
    # Four times as long, of half a step: 2.5 steps for one. Three servers do in 2/3 of a step what four did in 1/2.
    assert found["optcc_lost_seconds_per_day", "the ring"] == pytest.approx(86400 * 1.5 / 2.5)
    assert found["optcc_lost_seconds_per_day", "drain"] == pytest.approx(86400 * (1 - 6 / 7))
    assert found["optcc_server_drain_advised", "server1"] == 0
    event(service, job, "restore", "server1/nic1")
    assert scrape(service, job) == {("optcc_unavoidable_overhead_ratio",): 0, ("optcc_job_events",): 2}


def test_what_the_job_measured_is_held_against_the_bound_until_the_next_event(service: Service, job: str) -> None:
    event(service, job, "fail", "server2/nic0")
    measured = f"/v1/jobs/{job}/measurements"
    documented = service.ask("GET", "/v1/openapi.json").json
    check(
        documented,
        "/v1/jobs/{job}/measurements",
        "post",
        service.ask("POST", measured, {"size": "1GiB", "time": "40ms"}),
    )
    bound = optcc.lower_bound(optcc.load_topology(SMALL).cluster.degrade("server2/nic0"), 2**30)
    found = scrape(service, job)
    assert found["optcc_achieved_ratio", "healthy", "all_reduce"] == pytest.approx(float(bound.fault_free_s) / 0.04)
    assert found["optcc_achieved_ratio", "suspected", "all_reduce"] == pytest.approx(float(bound.seconds) / 0.04)
    event(service, job, "restore", "server2/nic0")
    assert not [key for key in scrape(service, job) if key[0] == "optcc_achieved_ratio"]
    told(service.ask("POST", measured, {"size": "1GiB", "time": "0"}), 422, "InputError")
    told(service.ask("POST", "/v1/jobs/none/measurements", {"size": "1", "time": "1s"}), 404, "UnknownError")


def test_a_server_that_is_cut_off_is_to_be_drained(service: Service, job: str) -> None:
    event(service, job, "fail", "server3/nic0")
    event(service, job, "fail", "server3/nic1", status=422)
    found = scrape(service, job)
    assert found["optcc_unavoidable_overhead_ratio",] == float("inf")
    assert found["optcc_server_drain_advised", "server3"] == 1
    assert [key[1] for key in found if key[0] == "optcc_lost_seconds_per_day"] == ["drain"]


def test_every_name_is_registered(service: Service, job: str) -> None:
    lines = service.ask("GET", "/metrics").body.decode().splitlines()
    names = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert names == {metric.name for metric in (*metrics.JOB, *metrics.SERVICE)}
    assert ("/metrics", "get") in [
        (p, m) for p, each in service.ask("GET", "/v1/openapi.json").json["paths"].items() for m in each
    ]


def test_a_job_with_no_share_of_communication_is_refused(service: Service) -> None:
    told(service.ask("POST", "/v1/jobs", {"topology": SMALL, "exposed": "120%"}), 422, "InputError")


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    done = CliRunner().invoke(main, ["serve", "--port", "0", "--metrics"])
    assert done.exit_code == 2
    assert "pip install prometheus-client" in done.output
