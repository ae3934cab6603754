"""NCCL's wordings of errors, 2.5 to 2.32, what they leave out, and trouble in words that are not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from optcc.diagnose.evidence import IN, OUT, NicDirections, port
from optcc.diagnose.readers import gather, read_text
from optcc.discover.nccl_log import parse_log
from optcc.values.cluster import Cluster

PORTS = NicDirections(Cluster.uniform(servers=4, nics=2, rate="400Gb/s"))
WHO = "server1:100:250 [0] transport/net_ib.cc:1295 NCCL WARN "


def start(servers: int = 4) -> str:
    using = "NET/IB : Using [0]nic0:1/RoCE [1]nic1:1/RoCE [RO]; OOB eth0:192.0.2."
    return "".join(f"server{i}:100:200 [0] NCCL INFO {using}{i}<0>\n" for i in range(servers))


def ends(*nics: int) -> set[int]:
    return {port(nic, way) for nic in nics for way in (OUT, IN)}


GIDS = "localGid ::ffff:198.51.100.1 remoteGids::ffff:198.51.100.2"
ANY = (2, 3, 0, 1, 4, 5, 6, 7)


@pytest.mark.parametrize(
    ("said", "nics"),
    [
        ("NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129", ANY),
        (
            "NET/IB : Got completion from peer 192.0.2.3<4444> with error 12, opcode 0, len 0, vendor err 129",
            (2, 3, 6, 7),
        ),
        ("NET/IB : Got completion from peer 192.0.2.3<4444> with error 12, opcode 0, len 0 (Recv)", (2, 3, 6, 7)),
        (
            f"NET/IB : Got completion from peer 192.0.2.3<4444> with status=12 opcode=0 len=0 (Recv) {GIDS}",
            (2, 3, 6, 7),
        ),
        (f"NET/IB : Got completion from peer 192.0.2.3<4444> with status=12 opcode=0 {GIDS} hca nic1", (3, 7)),
        ("NET/IBP:Got completion from peer 192.0.2.3<4444> with status=12 opcode=32698 (Send)", (2, 3, 6, 7)),
        ("NET/IB/GIN: Got completion from peer 192.0.2.3<4444> with status=12 opcode=1 (Put) hca nic0", (2, 6)),
        (
            "NET/IB: Got completion from peer 192.0.2.3<4444> with status=IBV_WC_RETRY_EXC_ERR(12) hca nic1",
            (3, 7),
        ),
        ("NET/IB : Got completion from peer 203.0.113.9<4444> with status=12 opcode=0 hca nic1", (3, 1, 5, 7)),
    ],
)
def test_every_wording_of_a_failed_transfer(said: str, nics: tuple[int, ...]) -> None:
    found = read_text(start() + WHO + said + "\n", "job.log", PORTS)
    (seen,) = found.observations
    assert seen.failed
    assert set(seen.used) == ends(*nics)
    (sign,) = found.signs
    assert (sign.server, sign.nic) == ("server1", nics[0] if nics[0] == 3 or len(nics) == 2 else None)
    assert "no answer from the other side" in sign.what
    assert "1 failed transfers" in found.read[0]
    assert not found.unused


@pytest.mark.parametrize(
    ("said", "nic", "what"),
    [
        ("NET/IB : Got async event : port error", None, "port error"),
        ("IB Got async event : port error", None, "port error"),
        ("NET/IB : nic1:1 Got async event : port error", 3, "port error"),
        ("NET/IB : nic1:1 Got non-fatal async event: port error(10)", 3, "port error(10)"),
        ("NET/IB : nic1:1 async fatal event: device fatal(8)", 3, "device fatal(8)"),
        (
            "NET/IB : nic1:1 async fatal event on QP: fatal: local work queue catastrophic error",
            3,
            "fatal: local work queue",
        ),
        (
            "NET/IB : nic1:1 async fatal event on QP (0x7f0c): local access violation",
            3,
            "fatal: local access violation",
        ),
        ("NET/IB : nic1:1 Got async event : local catastrophic error", 3, "local catastrophic error"),
        (
            "Call to ibv_modify_qp failed with 110 Connection timed out, on dev nic1:1, curr state INIT",
            3,
            "ibv_modify_qp failed: 110 Connection timed out",
        ),
    ],
)
def test_every_wording_of_an_event(said: str, nic: int | None, what: str) -> None:
    line = WHO + said + "\n"
    found = read_text(start() + 5 * line, "job.log", PORTS)
    (sign,) = found.signs
    assert (sign.server, sign.nic, sign.grave) == ("server1", nic, True)
    assert what in sign.what
    assert "5 times" in sign.what
    assert not found.unused


def test_trouble_in_words_that_are_not_known_is_counted() -> None:
    lines = [
        WHO + "NET/IB : the flux capacitor of nic7 has come loose",
        WHO + "NET/IB : the flux capacitor of nic9 has come loose",
        "server1:100:250 [0] NCCL INFO NET/IB : QP 12 was reset by its keeper",
        "server1:100:250 [0] NCCL INFO Call to connect returned Connection refused, retrying",
        "kernel: NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus",
        "server1:100:250 [0] NCCL INFO Could not find: libnccl-tuner.so",
        "server1:100:250 [0] NCCL INFO misc/socket.cc:84 -> 2",
        "server1:100:250 [0] NCCL INFO NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file",
        "server1:100:250 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.",
        "server1:100:250 [0] NCCL INFO comm 0x55 rank 0 nranks 4 cudaDev 0 busId 1b000 - Abort COMPLETE",
        "step 17: loss 3.1, no error",
    ]
    found = read_text(start() + "\n".join(lines) + "\n", "job.log", PORTS)
    (said,) = found.unused
    assert said.startswith("job.log: 5 lines speak of trouble in words that are not known, such as line 5: ")
    assert "flux capacitor" in said
    assert sorted(parse_log(start() + "\n".join(lines)).unknown) == [5, 6, 7, 8, 9]
    assert not read_text(start(), "job.log", PORTS).unused


def test_timeouts_are_told_although_they_name_no_nic() -> None:
    line = "[rank3]: [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5) ran for 600000 ms\n"
    (said,) = read_text(start() + 2 * line, "job.log", PORTS).unused
    assert said == "job.log: 2 timeouts of collectives, the first in line 5, where no NIC is named"


def test_addresses_of_one_file_count_for_all(tmp_path: Path) -> None:
    """Each server has a log of its own, as most launchers write them."""
    error = WHO + "NET/IB : Got completion from peer 192.0.2.3<4444> with status=12 opcode=0 hca nic1\n"
    lines = start().splitlines(keepends=True)
    for i, line in enumerate(lines):
        (tmp_path / f"rank{i}.log").write_text(line + (error if i == 1 else ""))
    found = gather([str(tmp_path / f"rank{i}.log") for i in range(4)], PORTS)
    (seen,) = found.observations
    assert set(seen.used) == ends(3, 7)


def test_the_gid_of_an_error_elsewhere_tells_the_peer_s_nic() -> None:
    """Both ends of a link complain: each names its own NIC, so that the other's is known."""
    here = f"NET/IB : Got completion from peer 192.0.2.3<4> with status=12 opcode=0 len=0 vendor err 129 (Send) {GIDS}"
    back = "localGid ::ffff:198.51.100.2 remoteGids::ffff:198.51.100.1"
    there = f"NET/IB : Got completion from peer 192.0.2.1<4> with status=12 opcode=0 len=0 (Recv) {back} hca nic0"
    text = start() + WHO + here + " hca nic1\n" + WHO.replace("server1", "server3") + there + "\n"
    found = read_text(text, "job.log", PORTS)
    assert {frozenset(o.used) for o in found.observations} == {frozenset(ends(3, 6))}


def test_addresses_that_two_files_dispute_are_not_known(tmp_path: Path) -> None:
    error = WHO + "NET/IB : Got completion from peer 192.0.2.3<4444> with status=12 opcode=0 hca nic1\n"
    (tmp_path / "a.log").write_text(start() + error)
    (tmp_path / "b.log").write_text(start().replace("192.0.2.3<", "192.0.2.2<").replace("192.0.2.2<", "192.0.2.3<", 1))
    found = gather([str(tmp_path / "a.log"), str(tmp_path / "b.log")], PORTS)
    assert set(found.observations[0].used) == ends(3, 1, 5, 7)


def test_channels_tell_the_peer_that_an_error_does_not_name() -> None:
    """A ring of four servers, in the words of NCCL 2.8: channels tell each process's NIC and its neighbours."""
    lines = start().splitlines()
    for h in range(4):
        for g in range(2):
            before, own, after = (2 * (i % 4) + g for i in (h - 1, h, h + 1))
            for one, other, way in ((own, after, "send"), (before, own, "receive")):
                ends_at = f"Channel 0{g} : {one}[1b000] -> {other}[1b000] [{way}] via NET/IB/{g}"
                lines.append(f"server{h}:{100 + g}:200 [{g}] NCCL INFO {ends_at}")
    error = "server1:101:250 [1] NCCL WARN NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129"
    found = read_text("\n".join([*lines, error]) + "\n", "job.log", PORTS)
    (seen,) = found.observations
    assert set(seen.used) == ends(3, 1, 5)
    assert found.signs[0].nic == 3
