"""NCCL's log (``NCCL_DEBUG=INFO``): which NICs a job uses on which host, and what failed on them.

Lines are ``HOST:PID:TID [GPU] NCCL INFO ...``, with a place in NCCL's source before a WARN. What is read was learned
from NCCL's ``src/transport/net_ib`` and ``net.cc``, versions 2.18 to 2.32:

    NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:192.0.2.1<0>
    NET/IB : Made virtual device [2] name=mlx5_0+mlx5_1 speed=800000 ndevs=2
    NCCL_IB_HCA set to mlx5_0
    Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0/GDRDMA
    NET/IB: Got completion from peer 192.0.2.2<5000> with status=IBV_WC_RETRY_EXC_ERR(12) ... hca mlx5_0
    NET/IB : mlx5_0:1 Got non-fatal async event: port error(10)
    NET/IB : mlx5_0:1 speed change detected: 400000 -> 100000 Mbps
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

_LINE = re.compile(
    r"([A-Za-z0-9][\w.-]{0,254}):\d{1,9}(?::\d{1,9})? \[(\d{1,4})\] (?:\S{1,200} )?NCCL (INFO|WARN) (.{1,2000})"
)
_NO_PREFIX = re.compile(r"(NET/IB[P ]?:? ?.{1,2000})")
_USING = re.compile(r"NET/IB[P ]? ?: Using((?: ?\[\d{1,4}\]\S{1,120})+)")
_SPEED_OF = re.compile(r"NET/IB ?: \[\d{1,4}\] ?([\w.+-]{1,80}):\S{1,80}:(\d{1,3})/(IB|RoCE) .{0,80}?speed=(\d{1,9})")
_MADE = re.compile(r"NET/IB ?: Made virtual device \[(\d{1,4})\] name=(\S{1,400}) speed=(\d{1,9}) ndevs=(\d{1,3})")
_CARD = re.compile(r"\[(\d{1,4})\]([\w.+-]{1,80}):(\d{1,3})/")
_OOB = re.compile(r"(?:OOB|Bootstrap ?: Using) \S{1,40}?:([0-9a-fA-F.:]{2,60})<\d{1,6}>")
_HCA = re.compile(r"NCCL_IB_HCA (?:set to|set by environment to) ?(\S{1,400})")
_CHANNEL = re.compile(
    r"Channel \d{1,4}/\d{1,4} : (\d{1,6})\[\w{1,12}\] -> (\d{1,6})\[\w{1,12}\] "
    r"\[(send|receive)\] via NET/\w{1,20}/(\d{1,4})"
)
RANK = re.compile(r"#\s+Rank\s+(\d{1,6})\s.{0,60}?\bon\s+(\S{1,255})\s+device\s+(\d{1,4})\s+\[")
"""A line of nccl-tests' list: rank, host, GPU."""
_RANK = re.compile(r"rank (\d{1,6}) nranks (\d{1,6}) cudaDev (\d{1,4})")
_FAILED = re.compile(
    r"Got completion from peer \[?([0-9a-fA-F.:]{2,60}?)\]?<\d{1,6}> "
    r"with status=(?:[A-Z_]{1,40}\()?(\d{1,3})\)?(.{0,400})"
)
_LOCAL_HCA = re.compile(r"\bhca ([\w.+-]{1,80})")
_EVENT = re.compile(
    r"NET/IB ?: ([\w.+-]{1,80}):(\d{1,3}) (?:Got (?:non-fatal )?async event ?: ?(.{1,80})|async fatal event: (.{1,80}))"
)
_SPEED = re.compile(r"NET/IB ?: ([\w.+-]{1,80}):(\d{1,3}) speed change detected: (\d{1,9}) -> (\d{1,9}) Mbps")
_TIMEOUT = re.compile(r"Test timeout|[Ww]atchdog caught collective operation timeout")

STATUS = {"12": "transport retries exceeded (12): no answer from the other side", "13": "receiver not ready (13)",
                "10": "remote access error (10)", "4": "local protection error (4)"}  # fmt: skip
"""ibv_wc_status that NCCL logs, in words."""
FLUSHED = "5"
"""What follows an error on all that was under way: it names no culprit."""
MOST_KEPT = 10_000
"""Failures and events of one log that are kept; one fault makes thousands of lines."""


@dataclass(frozen=True)
class FailedCompletion:
    """A completion with an error: on `host`'s NIC `nic` (None: not said), with the peer at `address`; in the `job` of
    this number among those that the log lists, -1 where it lists none."""

    line: int
    host: str
    nic: str | None
    address: str
    status: str
    job: int = -1


@dataclass(frozen=True)
class Event:
    """What a NIC's driver told: ``port error``; or a new speed in Mb/s."""

    line: int
    host: str
    nic: str
    what: str
    speed: int | None = None


@dataclass
class Log:
    """What a log says.

    cards : host -> {NCCL's number of a NIC: its name}
    channels : (rank, way "send" or "receive") -> NCCL's numbers of NICs, once for each channel
    hosts, gpus : rank -> host, and GPU there, as far as lines tell
    speeds, links : (host, NIC) -> Mb/s, and InfiniBand or Ethernet; addresses : IP address -> host
    hca : NCCL_IB_HCA, where it is said; jobs : of each list of ranks that nccl-tests print, the hosts
    """

    cards: dict[str, dict[int, str]] = field(default_factory=dict)
    channels: dict[tuple[int, str], Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    hosts: dict[int, str] = field(default_factory=dict)
    gpus: dict[int, int] = field(default_factory=dict)
    speeds: dict[tuple[str, str], int] = field(default_factory=dict)
    links: dict[tuple[str, str], str] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    hca: str | None = None
    failures: list[FailedCompletion] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    timeouts: list[int] = field(default_factory=list)
    jobs: list[set[str]] = field(default_factory=list)
    lines: int = 0


def looks_like_log(text: str) -> bool:
    """A line of NCCL's."""
    return " NCCL INFO " in text or " NCCL WARN " in text or "NET/IB" in text


def parse_log(text: str) -> Log:
    """What of `text` is NCCL's log; other lines are passed over."""
    log = Log()
    for number, line in enumerate(text.splitlines(), 1):
        if "NCCL_IB_HCA=" in line and log.hca is None and (given := re.search(r"NCCL_IB_HCA=([^\s'\"]{1,400})", line)):
            log.hca = given[1]
        if _TIMEOUT.search(line) and len(log.timeouts) < MOST_KEPT:
            log.timeouts.append(number)
        if line.startswith("#") and (rank := RANK.search(line)):
            if int(rank[1]) == 0 or not log.jobs:
                log.jobs.append(set())
            log.jobs[-1].add(rank[2])
        if "NCCL" not in line and "NET/IB" not in line:
            continue
        found = _LINE.search(line)
        bare = None if found else _NO_PREFIX.search(line)
        if found:
            log.lines += 1
            _one(log, number, found[1], found[4])
        elif bare:
            log.lines += 1
            _one(log, number, "", bare[1])
    return log


def _one(log: Log, number: int, host: str, said: str) -> None:
    if (using := _USING.search(said)) and host:
        names = {int(i): name if port == "1" else f"{name}:{port}" for i, name, port in _CARD.findall(using[1])}
        log.cards.setdefault(host, {}).update(names)
    if (made := _MADE.search(said)) and host:
        # Each NIC is one, too, and goes by its card's name there, whatever its port.
        name = log.cards.setdefault(host, {}).setdefault(int(made[1]), made[2])
        if made[4] != "1":
            log.cards[host][int(made[1])] = name = made[2]
        log.speeds.setdefault((host, name), int(made[3]))
    if (oob := _OOB.search(said)) and host:
        log.addresses[oob[1] or oob[2]] = host
    if hca := _HCA.search(said):
        log.hca = hca[1].rstrip(".")
    if (speed_of := _SPEED_OF.search(said)) and host:
        place = (host, _named(speed_of[1], speed_of[2]))
        log.speeds[place] = int(speed_of[4])
        log.links[place] = "InfiniBand" if speed_of[3] == "IB" else "Ethernet"
    if channel := _CHANNEL.search(said):
        sends = channel[3] == "send"
        rank = int(channel[1] if sends else channel[2])
        log.channels[rank, channel[3]][int(channel[4])] += 1
        if host:
            log.hosts[rank] = host
    elif host and (ranked := _RANK.search(said)):
        log.hosts.setdefault(int(ranked[1]), host)
        log.gpus[int(ranked[1])] = int(ranked[3])
    if (failed := _FAILED.search(said)) and len(log.failures) < MOST_KEPT:
        nic = _LOCAL_HCA.search(failed[3])
        log.failures.append(FailedCompletion(number, host, nic and nic[1], failed[1], failed[2], len(log.jobs) - 1))
    if len(log.events) >= MOST_KEPT:
        return
    if event := _EVENT.search(said):
        what = (event[3] or event[4]).strip()
        log.events.append(Event(number, host, _named(event[1], event[2]), what))
    if speed := _SPEED.search(said):
        what = f"speed changed from {int(speed[3]) // 1000} to {int(speed[4]) // 1000} Gb/s"
        log.events.append(Event(number, host, _named(speed[1], speed[2]), what, int(speed[4])))


def _named(nic: str, port: str) -> str:
    return nic if port == "1" else f"{nic}:{port}"


def wanted_by(hca: str, names: Mapping[int, str]) -> Iterator[int]:
    """Of NICs by number and name, those that NCCL_IB_HCA lets through: names begin so, or are so after ``=``; all
    others after ``^``."""
    text = hca.strip("'\"")
    but, text = text.startswith("^"), text.removeprefix("^")
    whole, text = text.startswith("="), text.removeprefix("=")
    items = [item.removesuffix(":1") for item in text.split(",") if item]
    for number, name in names.items():
        hit = any(name == item or (not whole and fnmatchcase(name, f"{item}*")) for item in items)
        if hit != but:
            yield number
