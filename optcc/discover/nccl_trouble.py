"""What lines of NCCL's log, and of Mooncake's transfer engine, say of trouble: failed transfers, events of ports, and
trouble in words that are not known, which is counted.

NCCL's wordings were learned from its ``net_ib`` and from logs of 2.5 to 2.32:

    event   NET/IB : Got async event : port error
    failed  Got completion with error 12, opcode 0, len 0, vendor err 129
    failed  Got completion from peer 192.0.2.2<5000> with error 12, opcode 0, len 0, vendor err 129 (Recv)
    failed  Got completion from peer 192.0.2.2<5000> with status=12 ... localGid ::ffff:192.0.2.1 remoteGids::ffff:...
    event   NET/IB : mlx5_0:1 Got async event : port error
    event   NET/IB : mlx5_0:1 async fatal event on QP (0x7f): local access violation work queue error
    event   Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state INIT, ...
    failed  Got completion from peer 192.0.2.2<5000> with status=IBV_WC_RETRY_EXC_ERR(12) ... hca mlx5_0
    speed   NET/IB : mlx5_0:1 speed change detected: 400000 -> 100000 Mbps

Mooncake's is ``Process failed for slice (..., local_nic: mlx5_1, peer_nic: 192.0.2.2:15729@mlx5_0, ...): WORDS``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_FAILED = re.compile(
    r"Got completion (?:from peer (?:\[?([\w.:%-]{1,80}?)\]?(?:<\d{1,6}>)? )?)?"
    r"with (?:status=|error )(?:[A-Z_]{1,40}\()?(\d{1,3})\)?(.{0,600})"
)
_LOCAL_HCA = re.compile(r"\bhca ([\w.+-]{1,80})")
_GIDS = re.compile(r"localGid ([0-9a-fA-F:.]{2,60})(?: {1,4}remoteGids? ?([0-9a-fA-F:.]{2,60}))?")
_SLICE = re.compile(
    r"Process failed for slice \(.{0,400}?local_nic: ([\w.+-]{1,80}), peer_nic: "
    r"\[?([\w.:-]{1,80}?)\]?(?::\d{1,5})?@([\w.+-]{1,80})\b.{0,200}?\): (.{1,80})"
)
_EVENT = re.compile(
    r"(?:NET/[\w/]{1,20} ?: |\bIB )(?:([\w.+-]{1,80}):(\d{1,3}) )?"
    r"(?:Got (?:non-fatal )?async (?:error )?event ?: ?(.{1,80})|"
    r"async (?:(fatal) |error )event(?: on [^:]{1,40})? ?: ?(.{1,80}))"
)
_CALL = re.compile(
    r"Call to (ibv_\w{1,40}) failed with (?:error )?(.{1,80}?),? on dev ([\w.+-]{1,80}):(\d{1,3})\b.{0,400}"
)
_SPEED = re.compile(r"NET/IB ?: ([\w.+-]{1,80}):(\d{1,3}) speed change detected: (\d{1,9}) -> (\d{1,9}) Mbps")

STATUS = {"12": "transport retries exceeded (12): no answer from the other side", "13": "receiver not ready (13)",
                "10": "remote access error (10)", "4": "local protection error (4)"}  # fmt: skip
"""ibv_wc_status that NCCL logs, in words."""
FLUSHED = "5"
"""What follows an error on all that was under way: it names no culprit."""
_IN_WORDS = {"transport retry counter exceeded": "12", "RNR retry counter exceeded": "13", "remote access error": "10",
             "local protection error": "4", "Work Request Flushed Error": FLUSHED}  # fmt: skip
"""ibv_wc_status_str -> its number."""

_TROUBLE = re.compile(
    r"\b(?:errors?|fail(?:ed|ure|s)?|fatal|time[d-]? ?out|unreachable|unable|could not|can(?:no|')t|refused|corrupt\w*|"
    r"reset by|closed by|link (?:is )?down|lost|dead|hang|abort(?:ed|ing)?|no route|Xid|fallen off)\b",
    re.I,
)
_NO_CONNECTION = re.compile(
    r"\b(?:time[d-]? ?out|unreachable|refused|reset by|closed by|no route|no device found)\b", re.I
)
"""What NCCL says at INFO of connections; its other words of failing there are of what it does without."""
_FOLLOWS = re.compile(
    r"[\w/.-]{1,80}:\d{1,6} -> \d{1,3}\b|Got CQE with error|/Plugin|plugin|dlerror|dlopen|dlsym|"
    r"(?:set|set by environment) to |Abort COMPLETE|Test (?:NCCL )?failure",
)
"""What comes after an error that is told by itself, and what NCCL says of files that most machines do not have."""
_SPEAKERS = re.compile(
    r"NCCL|NET/|\bnccl[A-Z]\w*|\bmlx[45]_|\bbnxt_|\birdma\b|\bib_core\b|\binfiniband\b|\bRDMA\b|\bNVRM\b"
)
_GLOG = re.compile(r"[EF]\d{4,8} [0-9:.]{8,20} +\d{1,20} [\w./-]{1,80}\.(?:cpp|cc|h):\d{1,6}\]")


@dataclass(frozen=True)
class FailedCompletion:
    """A completion with an error on `host` with the peer at `address`; empty where they are not said.

    nic, peer_nic : None: not said; gid, peer_gid : likewise, empty
    pid : of the process that tells it, empty for none
    job : number of the list of ranks above it among those that the log lists, -1 where it lists none
    """

    line: int
    host: str
    nic: str | None
    address: str
    status: str
    job: int = -1
    peer_nic: str | None = None
    gid: str = ""
    peer_gid: str = ""
    pid: str = ""


@dataclass(frozen=True)
class Event:
    """What a NIC's driver told: ``port error``; or a new speed in Mb/s. `nic` is empty where it is not said."""

    line: int
    host: str
    nic: str
    what: str
    speed: int | None = None


def failure_in(said: str, line: int, host: str, job: int) -> FailedCompletion | None:
    """The failed transfer that a line tells."""
    if "Got completion" in said and (failed := _FAILED.search(said)):
        nic, gids = _LOCAL_HCA.search(failed[3]), _GIDS.search(failed[3])
        gid, peer_gid = (gids[1], gids[2] or "") if gids else ("", "")
        return FailedCompletion(
            line, host, nic and nic[1], (failed[1] or "").partition("%")[0], failed[2], job, gid=gid, peer_gid=peer_gid
        )
    if "Process failed" in said and (part := _SLICE.search(said)):
        words = part[4].strip()
        return FailedCompletion(line, host, part[1], part[2], _IN_WORDS.get(words, words), job, part[3])
    return None


def event_in(said: str, line: int, host: str) -> Event | None:
    """The event that a line tells."""
    if "async" in said and (event := _EVENT.search(said)):
        what = f"{'fatal: ' if event[4] else ''}{event[3] or event[5]}".strip()
        return Event(line, host, port_name(event[1], event[2]) if event[1] else "", what)
    if "Call to ibv_" in said and (call := _CALL.search(said)):
        return Event(line, host, port_name(call[3], call[4]), f"{call[1]} failed: {call[2]}")
    if "speed change" in said and (speed := _SPEED.search(said)):
        what = f"speed changed from {int(speed[3]) // 1000} to {int(speed[4]) // 1000} Gb/s"
        return Event(line, host, port_name(speed[1], speed[2]), what, int(speed[4]))
    return None


def speaks_of_trouble(line: str, level: str) -> bool:
    """Whether a line in which nothing is known tells of something wrong. level : NCCL's WARN or INFO, or empty."""
    told = level == "WARN" or _GLOG.match(line) or (_TROUBLE.search(line) and _SPEAKERS.search(line))
    no_connection = level == "INFO" and _NO_CONNECTION.search(line)
    return bool(told or no_connection) and _FOLLOWS.search(line) is None


def port_name(nic: str, port: str) -> str:
    """``mlx5_0`` for port 1, else ``mlx5_0:2``."""
    return nic if port == "1" else f"{nic}:{port}"
