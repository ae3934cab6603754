"""Started by others: whose environment says what, what is missing or contradicts, and a rank that joins that way."""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from optcc.cli.options import membership_of
from optcc.errors import InputError
from optcc.runtime.control import rendezvous
from optcc.runtime.control.door import Door
from optcc.runtime.control.job import Assignment, Job
from optcc.runtime.control.overseer import Overseer
from optcc.runtime.control.rendezvous import (
    PORT,
    Membership,
    addresses_of,
    find,
    first_host,
    is_loopback,
    listening_address,
)
from optcc.runtime.messages import RunCall
from tests.broken_schedules import nested
from tests.control_star import gather, opened
from tests.free_port import free_port

ROOT = Path(__file__).resolve().parent.parent
SECRET = "0123456789abcdef"
SHARED = {"OPTCC_SECRET": SECRET}

TORCH = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "node7",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "abc",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-7@1",
}
MPICH = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "64",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_JOB_ID": "20042",
    "SLURM_STEP_ID": "3",
    "SLURM_JOB_NODELIST": "rack1n[01-08]",
    "SLURM_STEP_NODELIST": "rack[2-3]n[07,09-12],login",
}
TOLD = {"rendezvous": "10.0.0.1:999", "rank": 1, "world": 2}


@pytest.mark.parametrize(
    ("environ", "told", "expected"),
    [
        (TORCH, {}, (3, 4, ("node7", 29501), "torch-abc")),
        (OPEN_MPI, {}, (1, 2, ("127.0.0.1", PORT), "mpi-prterun-7@1")),
        (
            {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "MASTER_ADDR": "a"},
            {},
            (1, 2, ("a", PORT), "mpi-prterun-7@1"),
        ),
        (MPICH, {}, (0, 2, ("127.0.0.1", PORT), "mpi-none")),
        (SLURM, {}, (5, 8, ("rack2n07", PORT + 42), "slurm-20042.3")),
        ({**SLURM, **OPEN_MPI}, {}, (1, 2, ("127.0.0.1", PORT), "mpi-prterun-7@1")),
        ({**SLURM, **TORCH}, {}, (3, 4, ("node7", 29501), "torch-abc")),
        ({}, TOLD, (1, 2, ("10.0.0.1", 999), "optcc")),
        ({**TORCH, "WORLD_SIZE": "odd"}, TOLD, (1, 2, ("10.0.0.1", 999), "optcc")),
        (TORCH, {"rank": 0, "world": 2}, (0, 2, ("node7", 29501), "torch-abc")),
        (TORCH, {"rendezvous": "[fe80::1]:80"}, (3, 4, ("fe80::1", 80), "torch-abc")),
        ({**SLURM, "OPTCC_RENDEZVOUS": "head:1"}, {}, (5, 8, ("head", 1), "slurm-20042.3")),
        ({**SLURM, "OPTCC_RENDEZVOUS": "head:1"}, {"rendezvous": "b:2"}, (5, 8, ("b", 2), "slurm-20042.3")),
        ({**TORCH, "OPTCC_PORT": "7", "OPTCC_JOB": "mine"}, {}, (3, 4, ("node7", 7), "mine")),
        ({**TORCH, "OPTCC_JOB": "mine"}, {"job": "this"}, (3, 4, ("node7", 29501), "this")),
    ],
)
def test_who_says_what(environ: dict[str, str], told: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert find({**environ, **SHARED}, **told) == Membership(*expected, SECRET)


@pytest.mark.parametrize("environ", [{}, SHARED, {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8"}, {"LOCAL_RANK": "0"}])
def test_who_was_not_started_is_no_member(environ: dict[str, str]) -> None:
    assert find(environ) is None


def without(environ: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


@pytest.mark.parametrize(
    ("environ", "told", "complaint"),
    [
        (without(TORCH, "WORLD_SIZE"), {}, "WORLD_SIZE: not set"),
        (without(TORCH, "RANK"), {}, "^RANK: not set"),
        (without(TORCH, "MASTER_ADDR"), {}, "--rendezvous or MASTER_ADDR: nothing says where rank 0 is"),
        ({**TORCH, "RANK": "first"}, {}, "^RANK: not a number, got 'first'"),
        ({**TORCH, "RANK": "4"}, {}, "^RANK: not a rank of this job, expected 0 to 3, got 4"),
        ({**TORCH, "WORLD_SIZE": "0"}, {}, "WORLD_SIZE: no ranks"),
        ({**TORCH, "MASTER_PORT": "65535"}, {}, "OPTCC_PORT: not a port, expected 1 to 65535, got 65536"),
        ({**TORCH, "OPTCC_PORT": "http"}, {}, "OPTCC_PORT: not a number"),
        (without(OPEN_MPI, "OMPI_COMM_WORLD_SIZE"), {}, "OMPI_COMM_WORLD_SIZE: not set"),
        (without(OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE"), {}, "--rendezvous or MASTER_ADDR"),
        ({**OPEN_MPI, **MPICH}, {}, "OMPI_COMM_WORLD_RANK and PMI_RANK: two starters disagree"),
        (without(SLURM, "SLURM_JOB_ID"), {}, "SLURM_JOB_ID: not set"),
        (without(SLURM, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"), {}, "--rendezvous or SLURM_STEP_NODELIST"),
        ({**SLURM, "SLURM_STEP_NODELIST": ","}, {}, "SLURM_STEP_NODELIST: not a list of hosts"),
        ({}, {"rendezvous": "a:1"}, "--rank and --world: who this process is remains open"),
        ({}, {"rank": 1, "world": 2}, "--rendezvous: nothing says where rank 0 is"),
        ({}, {"rendezvous": "a:1", "rank": 1}, "--rank and --world: one without the other"),
        ({}, {"rendezvous": "a:1", "rank": 2, "world": 2}, "--rank: not a rank of this job"),
        ({}, {"rendezvous": "a", "rank": 1, "world": 2}, "--rendezvous: not an address, expected HOST:PORT, got 'a'"),
        ({"OPTCC_RENDEZVOUS": "a:0"}, {"rank": 1, "world": 2}, "OPTCC_RENDEZVOUS: not an address"),
    ],
)
def test_what_is_missing_or_contradicts_is_named(environ: dict[str, str], told: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        find({**environ, **SHARED}, **told)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node7", "node7"),
        ("a,b", "a"),
        ("n[01-03]", "n01"),
        ("n[5,7-9]x", "n5x"),
        ("rack[2-3]n[07,09-12],login", "rack2n07"),
    ],
)
def test_the_first_host_of_slurms_lists(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


# --- the secret -----------------------------------------------------------------------------------------------------


def test_a_secret_is_needed_where_others_can_reach_the_hub() -> None:
    with pytest.raises(InputError, match=r"OPTCC_SECRET or OPTCC_SECRET_FILE: no secret.*openssl rand -hex 32"):
        find({}, **TOLD)
    alone = find({}, **{**TOLD, "rendezvous": "127.0.0.1:999"})
    assert alone is not None
    assert alone.secret == ""


def test_a_secret_is_not_shown() -> None:
    assert SECRET not in repr(find(SHARED, **TOLD))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "localhost", "::1"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "0.0.0.0", "localhost.example", "::", "node7"])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_short_and_double_secrets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="OPTCC_SECRET: too short a secret, expected 16 characters or more, got 15"):
        find({"OPTCC_SECRET": SECRET[1:]}, **TOLD)
    with pytest.raises(InputError, match="OPTCC_SECRET and OPTCC_SECRET_FILE: two secrets"):
        find({**SHARED, "OPTCC_SECRET_FILE": str(tmp_path / "s")}, **TOLD)


def test_a_file_with_the_secret_must_be_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    environ = {"OPTCC_SECRET_FILE": str(path)}
    with pytest.raises(InputError, match=r"OPTCC_SECRET_FILE, .*: cannot be read"):
        find(environ, **TOLD)
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    found = find(environ, **TOLD)
    assert found is not None
    assert found.secret == SECRET
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        with pytest.raises(InputError, match=r"OPTCC_SECRET_FILE, .*: others may know what it holds"):
            find(environ, **TOLD)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(InputError, match="OPTCC_SECRET_FILE: too short"):
        find(environ, **TOLD)


def test_the_command_line_keeps_the_secret_from_what_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTCC_SECRET", SECRET)
    found = membership_of("10.0.0.1:999", 0, 2)
    assert found is not None
    assert found.secret == SECRET
    assert "OPTCC_SECRET" not in os.environ


# --- where rank 0 listens -------------------------------------------------------------------------------------------


def test_the_hub_listens_where_it_is_told() -> None:
    assert listening_address("127.0.0.1") == "127.0.0.1"
    assert listening_address("node7", "lo") == "127.0.0.1"
    assert listening_address("node7", "10.1.2.3") == "10.1.2.3"
    with pytest.raises(InputError, match=r"--interface: no address there.*one of .*lo"):
        listening_address("node7", "nothing0")
    with pytest.raises(InputError, match="--rendezvous: unknown host"):
        listening_address("no.such.host.invalid")


IF_INET6 = """\
fe80000000000000001122fffe334455 02 40 20 80     eth0
fd770000000000000000000000000010 02 40 00 80     eth0
fd770000000000000000000000000011 02 40 00 80     eth0
00000000000000000000000000000001 01 80 10 80       lo
"""


def test_the_hub_listens_by_the_version_of_ip_that_others_come_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tmp_path / "if_inet6"
    listed.write_text(IF_INET6)
    v4 = ipaddress.ip_address("10.1.2.3")
    v6 = addresses_of("eth0", listed)[-3:]
    assert [str(address) for address in v6] == ["fd77::10", "fd77::11", "fe80::11:22ff:fe33:4455%eth0"]
    has = {"eth0": [v4, *v6], "old0": [v4], "new0": v6[2:]}
    monkeypatch.setattr(rendezvous, "addresses_of", lambda name: has[name])
    assert listening_address("fd77::10", "eth0") == "fd77::10"
    assert listening_address("fd77::11", "eth0") == "fd77::11"
    assert listening_address("fd77::99", "eth0") == "fd77::10"
    assert listening_address("10.9.9.9", "eth0") == "10.1.2.3"
    assert listening_address("no.such.host.invalid", "eth0") == "10.1.2.3"
    assert listening_address("fd77::10", "new0") == "fe80::11:22ff:fe33:4455%eth0"
    with pytest.raises(InputError, match=r"--interface: others come to fd77::10 by IPv6, .*, which has 10\.1\.2\.3"):
        listening_address("fd77::10", "old0")
    with pytest.raises(InputError, match=r"by IPv6, expected .* an IPv6 address, got '10\.0\.0\.1, which"):
        listening_address("fd77::10", "10.0.0.1")


def test_a_name_that_means_loopback_only_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]  # what Debian's /etc/hosts says
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    with pytest.raises(InputError, match=r"the name means loopback on this machine.*--interface"):
        listening_address("node7")
    assert listening_address("localhost") == "127.0.1.1"


def test_a_hub_of_a_membership() -> None:
    address = ("127.0.0.1", free_port())
    hub = Overseer.open(Membership(0, 2, address, "it", SECRET), None, 0.0)
    assert hub.address == address
    hub.leave()


# --- a whole rank ---------------------------------------------------------------------------------------------------

MEMBER = """
import os, sys
from optcc.runtime.control.rendezvous import find
from optcc.runtime.control.runner import serve_rank
sys.exit(serve_rank(find(os.environ)))
"""


def test_a_rank_that_another_starts_runs_the_job() -> None:
    job = Job({"it": nested(ranks=1, weak=0)}, "float32", "sum", paced=False)
    with opened(1, Door("torch-abc", SECRET.encode(), "127.0.0.1", 0)) as hub:
        environ = {
            **os.environ,
            **TORCH,
            **SHARED,
            "RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": hub.address[0],
            "MASTER_PORT": str(hub.address[1] - 1),
        }
        with subprocess.Popen([sys.executable, "-c", MEMBER], env=environ, cwd=ROOT) as process:
            gather(hub, 60)
            hub.ship(Assignment(job, [RunCall("it", [])], 60.0, {}).to_bytes())
            assert hub.news.get(timeout=60) == (0, None)
            _, value = hub.news.get(timeout=60)  # type: ignore[misc]
            assert (set(value["ran"]["sent"].values()), value["exact"]) == ({0}, True)
            hub.ship(b"")
            assert process.wait(60) == 0
