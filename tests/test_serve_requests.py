"""Requests that `optcc serve` cannot use are told what is wrong and where, and reach no file."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import optcc
from optcc.errors import InputError
from optcc.serve.messages import ClusterRequest
from optcc.serve.work import read_cluster
from tests.serving import ROOT, SMALL, Service, check, running, told


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("serve")
    yield from running(folder, "--unix", str(folder / "socket"))


@pytest.fixture(scope="module")
def documented(service: Service) -> dict[str, Any]:
    return service.ask("GET", "/v1/openapi.json").json


@pytest.mark.parametrize(
    ("body", "status", "kind", "where"),
    [
        (b"{", 400, "MalformedError", "body"),
        (b"\xff\xfe", 400, "MalformedError", "body"),
        (b"[" * 100_000, 422, "InputError", "$"),
        ([], 422, "InputError", "$"),
        ({}, 422, "InputError", "$"),
        ({"topology": SMALL, "path": "/etc/passwd"}, 422, "InputError", "$"),
        ({"topology": 3}, 422, "InputError", "$.topology"),
        ({"topology": "/etc/passwd"}, 422, "InputError", "topology"),
        ({"topology": "/sys"}, 422, "InputError", "topology"),
        ({"topology": "a\0b"}, 422, "InputError", "topology"),
        ({"topology": SMALL, "fail": ["server9/nic0"]}, 422, "InputError", "server9"),
        ({"topology": SMALL, "size": "big"}, 422, "InputError", "size"),
        ({"topology": SMALL, "size": "0"}, 422, "InputError", "size"),
        ({"topology": SMALL, "alpha": "1"}, 422, "InputError", "alpha"),
        ({"topology": SMALL, "family": "magic"}, 422, "InputError", "--family"),
        ({"topology": SMALL, "segments": 10**9}, 422, "InputError", "$.segments"),
        ({"topology": "uniform:servers=9999,nics=99,rate=1Gb/s"}, 422, "InputError", "topology"),
        ({"topology": SMALL, "fail": ["server1/nic0", "server1/nic1"]}, 422, "InfeasibleError", "server1"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_bad_plans_are_told_what_and_where(
    service: Service, documented: dict[str, Any], body: object, status: int, kind: str, where: str
) -> None:
    reply = service.ask("POST", "/v1/plan", body)
    check(documented, "/v1/plan", "post", reply)
    assert where in told(reply, status, kind)["where"]
    assert "/tmp" not in reply.body.decode()


@pytest.mark.parametrize(
    ("event", "where"),
    [
        ({"event": "fail", "nic": "server0/nic7"}, "nic7"),
        ({"event": "fail", "nic": "server0"}, "server0"),
        ({"event": "explode", "nic": "server0/nic0"}, "$.event"),
        ({"event": "rate", "nic": "server0/nic0"}, "rate"),
        ({"event": "fail", "nic": "server0/nic0", "rate": "1Gb/s"}, "rate"),
        ({"event": "rate", "nic": "server0/nic0", "rate": "900Gb/s"}, "rate of server0/nic0"),
    ],
    ids=lambda v: str(v)[:50],
)
def test_bad_events_change_nothing(service: Service, event: dict[str, str], where: str) -> None:
    job = f"/v1/jobs/{service.ask('POST', '/v1/jobs', {'topology': SMALL}).json['job']}"
    try:
        assert told(service.ask("POST", f"{job}/events", event), 422, "InputError")["where"] == where
        assert service.ask("GET", job).json["event"] == 0
    finally:
        service.ask("DELETE", job)


def test_other_paths_and_methods(service: Service, documented: dict[str, Any]) -> None:
    told(service.ask("GET", "/v1/../../etc/passwd"), 404, "RouteError")
    told(service.ask("GET", "/v1/plan"), 405, "RouteError")
    told(service.ask("POST", "/v1/jobs/nobody/events", {"event": "fail", "nic": "a/b"}), 404, "UnknownError")
    job = f"/v1/jobs/{service.ask('POST', '/v1/jobs', {'topology': SMALL}).json['job']}"
    told(service.ask("GET", f"{job}/plan?size=1MiB&file=/etc/passwd"), 422, "InputError")
    told(service.ask("GET", f"{job}/plan?lowered=gold"), 422, "InputError")
    told(service.ask("GET", f"{job}/plan?size=much"), 422, "InputError")
    service.ask("DELETE", job)


def test_a_topology_is_never_a_path(tmp_path: Path) -> None:
    """Negative control beside it: the file would do, were it read."""
    good = tmp_path / "good.yaml"
    good.write_text((ROOT / "examples/two-degraded.yaml").read_text())
    assert optcc.load_topology(str(good)).cluster
    with pytest.raises(InputError, match="not a topology"):
        read_cluster(ClusterRequest(topology=str(good)))
    assert read_cluster(ClusterRequest(topology=good.read_text()))[0] == optcc.load_topology(str(good)).cluster


def test_a_topology_is_never_unpacked(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tarball all of printable characters: headers may be padded with spaces. It is not even looked at as one."""
    head = b"class".ljust(100) + b"0000755 " + b"0000000 " * 2 + b"00000000000 " * 2 + b" " * 8 + b"5"
    head = head.ljust(512)
    text = (head[:148] + b"%06o  " % sum(head) + head[156:] + b" " * 512).decode()
    (tmp_path / "copy.tar").write_text(text)
    assert tarfile.is_tarfile(tmp_path / "copy.tar")
    told(service.ask("POST", "/v1/plan", {"topology": text}), 422, "InputError")
    unpacked: list[str] = []
    unpack = optcc.discover.sysfs_tree.read_tarball
    monkeypatch.setattr(
        "optcc.discover.sysfs_tree.read_tarball", lambda p, hint: (unpacked.append(p), unpack(p, hint))[1]
    )
    with pytest.raises(InputError):
        read_cluster(ClusterRequest(topology=text))
    assert not unpacked
    with pytest.raises(InputError):  # the control: what would have been, were it read as any file
        optcc.load_topology(str(tmp_path / "copy.tar"))
    assert unpacked
