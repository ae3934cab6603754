"""NCCL's log (``NCCL_DEBUG=INFO``): which NICs a job uses on which host, and what failed on them.

Lines are ``HOST:PID:TID [GPU] NCCL INFO ...``, with a place in NCCL's source before a WARN. What is read was learned
from NCCL's ``src/transport/net_ib`` and ``net.cc``, versions 2.18 to 2.32:

    NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:192.0.2.1<0>
    NET/IB : Made virtual device [2] name=mlx5_0+mlx5_1 speed=800000 ndevs=2
    NCCL_IB_HCA set to mlx5_0
    Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0/GDRDMA
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from fractions import Fraction

from optcc.discover.port_lists import PartNic, TopologyPart, port_name, told
from optcc.errors import InputError

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
_PLUGIN = re.compile(r"NET/optcc: NIC ([\w.+:%-]{1,80}) (?:of host (\S{1,80}) .{0,60})?is (lost|back)[;,]")

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
    if "NET/optcc" in said and (own := _PLUGIN.search(said)):
        return Event(line, own[2] or host, own[1], f"{own[3]}, by optcc's plugin")
    return None


def speaks_of_trouble(line: str, level: str) -> bool:
    """Whether a line in which nothing is known tells of something wrong. level : NCCL's WARN or INFO, or empty."""
    told = level == "WARN" or _GLOG.match(line) or (_TROUBLE.search(line) and _SPEAKERS.search(line))
    no_connection = level == "INFO" and _NO_CONNECTION.search(line)
    return bool(told or no_connection) and _FOLLOWS.search(line) is None


_LINE = re.compile(
    r"(?P<host>[A-Za-z0-9][\w.-]{0,254}):(?P<pid>\d{1,9})(?::\d{1,9})? \[(?P<gpu>\d{1,4})\] "
    r"(?:\S{1,200} )?NCCL (?P<level>INFO|WARN) (?P<said>.{1,2000})"
)
_NO_PREFIX = re.compile(r"(NET/IB[P ]?:? ?.{1,2000})")
_USING = re.compile(r"NET/IB[P ]? ?: Using((?: ?\[\d{1,4}\]\S{1,120})+)")
_SPEED_OF = re.compile(r"NET/IB ?: \[\d{1,4}\] ?([\w.+-]{1,80}):\S{1,80}:(\d{1,3})/(IB|RoCE) .{0,80}?speed=(\d{1,9})")
_MADE = re.compile(r"NET/IB ?: Made virtual device \[(\d{1,4})\] name=(\S{1,400}) speed=(\d{1,9}) ndevs=(\d{1,3})")
_CARD = re.compile(r"\[(\d{1,4})\]([\w.+-]{1,80}):(\d{1,3})/")
OOB = re.compile(r"(?:OOB|Bootstrap ?: Using) \S{1,40}?:([0-9a-fA-F.:]{2,60})(?:%[\w.-]{1,40})?<\d{1,6}>")
_HCA = re.compile(r"NCCL_IB_HCA (?:set to|set by environment to) ?(\S{1,400})")
_CHANNEL = re.compile(
    r"Channel \d{1,4}(?:/\d{1,4})? : (\d{1,6})\[\w{1,12}\] -> (\d{1,6})\[\w{1,12}\] "
    r"\[(send|receive)\] via NET/\w{1,20}/(\d{1,4})(\(\d{1,6}\))?"
)
"""With a rank in brackets, it is that rank's GPU that the NIC is beside."""
RANK = re.compile(r"#\s+Rank\s+(\d{1,6})\s.{0,60}?\bon\s+(\S{1,255})\s+device\s+(\d{1,4})\s+\[")
"""A line of nccl-tests' list: rank, host, GPU."""
_RANK = re.compile(r"rank (\d{1,6}) nranks (\d{1,6}) cudaDev (\d{1,4})(?: nvmlDev (\d{1,4}))?")
_POINTER = re.compile(r"\bcomm (0x[0-9a-fA-F]{1,16})\b")
_TIMEOUT = re.compile(r"Test timeout|[Ww]atchdog caught collective operation timeout")
_HERE = re.compile(r"(?:listening on|server_name:|local_server_name[:=]) {0,4}\[?([\w.:-]{1,80}?)\]?(?:[ :]|$)")
"""Mooncake's lines name no host, but its start has the address that it listens at."""

MOST_KEPT = 10_000
"""Failures and events of one log that are kept; one fault makes thousands of lines."""


@dataclass(frozen=True)
class LogRank:
    """A rank of one communicator: ranks of different ones are different numbers. `ranks` : how many it has, None where
    the log does not say; `gpu` : likewise."""

    comm: str
    ranks: int | None
    rank: int
    host: str
    gpu: int | None


@dataclass
class Log:
    """What a log says.

    cards : host -> {NCCL's number of a NIC: its name}
    channels : (rank, way "send" or "receive") -> NCCL's numbers of NICs, once for each channel
    gpus : host -> GPUs of its ranks
    speeds, links : (host, NIC) -> Mb/s, and InfiniBand or Ethernet; addresses : IP address -> host
    hca : NCCL_IB_HCA, where it is said; jobs : of each list of ranks that nccl-tests print, the hosts
    unknown : line -> its text, of trouble in words that are not known
    """

    cards: dict[str, dict[int, str]] = field(default_factory=dict)
    channels: dict[tuple[LogRank, str], Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    gpus: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    speeds: dict[tuple[str, str], int] = field(default_factory=dict)
    links: dict[tuple[str, str], str] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    hca: str | None = None
    failures: list[FailedCompletion] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    timeouts: list[int] = field(default_factory=list)
    jobs: list[set[str]] = field(default_factory=list)
    unknown: dict[int, str] = field(default_factory=dict)
    lines: int = 0
    _pairs: dict[tuple[str, str], set[tuple[int, int, str]]] = field(default_factory=lambda: defaultdict(set))
    _ends: dict[tuple[int, int, str], set[tuple[str, int]]] = field(default_factory=lambda: defaultdict(set))

    def connect(self, process: tuple[str, str], one: int, other: int, way: str, number: int) -> None:
        """That a process, by host and id, is an end of a channel between two ranks, on its NIC `number`."""
        self._pairs[process].add((one, other, way))
        self._ends[one, other, way].add((process[0], number))

    def ends_of(self, process: tuple[str, str]) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
        """The NICs over which a process talks, and those at the other ends: (host, NCCL's number) each. Ranks of
        several communicators go by the same numbers: then there are more."""
        pairs = self._pairs.get(process, set())
        near = {end for pair in pairs for end in self._ends[pair] if end[0] == process[0]}
        opposite = {"send": "receive", "receive": "send"}
        return near, {end for one, other, way in pairs for end in self._ends.get((one, other, opposite[way]), ())}


def looks_like_log(text: str) -> bool:
    """A line of NCCL's, or of Mooncake's transfer engine."""
    return any(mark in text for mark in (" NCCL INFO ", " NCCL WARN ", "NET/IB", "Process failed for slice"))


def parse_log(text: str) -> Log:
    """What of `text` is NCCL's log; of other lines those that speak of trouble."""
    log, ranks, here = Log(), _Ranks(), ""
    for number, line in enumerate(text.splitlines(), 1):
        if "NCCL_IB_HCA=" in line and log.hca is None and (given := re.search(r"NCCL_IB_HCA=([^\s'\"]{1,400})", line)):
            log.hca = given[1]
        if "imeout" in line and _TIMEOUT.search(line):
            if len(log.timeouts) < MOST_KEPT:
                log.timeouts.append(number)
            continue
        if line.startswith("#"):
            if rank := RANK.search(line):
                if int(rank[1]) == 0 or not log.jobs:
                    log.jobs.append(set())
                log.jobs[-1].add(rank[2])
            continue
        found = _LINE.search(line)
        bare = None if found else _NO_PREFIX.search(line)
        host, said = (found["host"], found["said"]) if found else (here, bare[1] if bare else line)
        if not (found or bare) and (own := _HERE.search(line)):
            here = own[1]
        log.lines += 1 if found or bare else 0
        if found:
            if ranks.told(log, found, said):
                continue
            _told(log, host, said)
        elif bare and (hca := _HCA.search(said)):
            log.hca = hca[1].rstrip(".")
        _trouble(log, number, (host, found["pid"] if found else ""), said, found["level"] if found else "")
    ranks.end(log)
    return log


def cards_in(said: str) -> dict[int, str]:
    """The NICs that a line says to be in use, by NCCL's numbers; none where it says nothing of them."""
    using = _USING.search(said)
    return {int(i): port_name(name, port) for i, name, port in _CARD.findall(using[1])} if using else {}


def _told(log: Log, host: str, said: str) -> None:
    if names := cards_in(said):
        log.cards.setdefault(host, {}).update(names)
    if made := _MADE.search(said):
        # Each NIC is one, too, and goes by its card's name there, whatever its port.
        name = log.cards.setdefault(host, {}).setdefault(int(made[1]), made[2])
        if made[4] != "1":
            log.cards[host][int(made[1])] = name = made[2]
        log.speeds.setdefault((host, name), int(made[3]))
    if oob := OOB.search(said):
        log.addresses[oob[1]] = host
    if hca := _HCA.search(said):
        log.hca = hca[1].rstrip(".")
    if speed_of := _SPEED_OF.search(said):
        place = (host, port_name(speed_of[1], speed_of[2]))
        log.speeds[place] = int(speed_of[4])
        log.links[place] = "InfiniBand" if speed_of[3] == "IB" else "Ethernet"


def _trouble(log: Log, number: int, process: tuple[str, str], said: str, level: str) -> None:
    if failed := failure_in(said, number, process[0], len(log.jobs) - 1):
        if len(log.failures) < MOST_KEPT:
            log.failures.append(replace(failed, pid=process[1]))
    elif event := event_in(said, number, process[0]):
        if len(log.events) < MOST_KEPT:
            log.events.append(event)
    elif len(log.unknown) < MOST_KEPT and speaks_of_trouble(said, level):
        log.unknown[number] = said


class _Ranks:
    """Which rank of which communicator each line's process is. A process, and a GPU of it, works on one communicator
    after the other: its channels belong to the one whose start was logged last. NCCL up to 2.18 logs only their end."""

    def __init__(self) -> None:
        self._now: dict[tuple[str, str, str], LogRank] = {}
        self._begun: set[tuple[str, str, str, str]] = set()
        self._open: dict[tuple[str, str, str], list[tuple[int, str, int]]] = defaultdict(list)

    def told(self, log: Log, found: re.Match[str], said: str) -> bool:
        """What one line says of ranks; whether that is all."""
        process = (found["host"], found["pid"], found["gpu"])
        if channel := _CHANNEL.search(said):
            rank, way, number = int(channel[1] if channel[3] == "send" else channel[2]), channel[3], int(channel[4])
            log.connect(process[:2], int(channel[1]), int(channel[2]), way, number)
            now = self._now.get(process)
            if now is not None and now.rank == rank:
                log.channels[replace(now, gpu=None) if channel[5] else now, way][number] += 1
            else:
                self._open[process].append((rank, way, number))
            return True
        if ranked := _RANK.search(said):
            gpu = int(ranked[4] or ranked[3])
            log.gpus[found["host"]].add(gpu)
            pointer = _POINTER.search(said)
            comm = pointer[1] if pointer else ""
            member = LogRank(comm, int(ranked[2]), int(ranked[1]), found["host"], gpu)
            if "COMPLETE" not in said:
                self._begun.add((*process, comm))
                self._now[process] = member
            elif (*process, comm) not in self._begun:
                self._close(log, process, member)
        return False

    def _close(self, log: Log, process: tuple[str, str, str], member: LogRank) -> None:
        for rank, way, number in self._open.pop(process, []):
            same = rank == member.rank
            log.channels[member if same else replace(member, comm="", ranks=None, rank=rank), way][number] += 1

    def end(self, log: Log) -> None:
        """Channels of communicators of which nothing was told."""
        for process in list(self._open):
            now = self._now.get(process)
            self._close(log, process, LogRank("", None, -1, process[0], None if now is None else now.gpu))


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


MOST_HOSTS = 4096


def looks_like_nccl_log(text: str) -> bool:
    """The line with the NICs in use."""
    return " NCCL INFO " in text and "NET/IB" in text and ": Using" in text


def read_nccl_log(text: str, path: str) -> dict[str, TopologyPart]:
    """Host -> what the log tells of it. Raises InputError where it has no NICs."""
    log = parse_log(text)
    if not log.cards or len(log.cards) > MOST_HOSTS:
        raise InputError(
            "no NICs in the log, or too many hosts",
            where=path,
            expected="lines with NET/IB : Using, of NCCL_DEBUG=INFO",
            got=f"{len(log.cards)} hosts",
        )
    beside = _beside(log)
    found = {}
    for host, cards in log.cards.items():
        ports = {port for name in cards.values() if "+" in name for port in name.split("+")}
        nics = tuple(
            PartNic(name, _rate(log.speeds.get((host, name))), True, log.links.get((host, name), ""),
                    beside.get((host, number)))
            for number, name in cards.items()
            if name not in ports
        )  # fmt: skip
        found[host] = told(f"{path}: {host}", "NCCL's log", nics, log.gpus.get(host, ()), adds=True)
    return found


def _beside(log: Log) -> dict[tuple[str, int], int]:
    """(host, NCCL's number of a NIC) -> the GPU, counted on its host, that uses it most."""
    uses: dict[tuple[str, int], Counter[int]] = defaultdict(Counter)
    for (rank, _), numbers in log.channels.items():
        if rank.gpu is not None:
            for number, count in numbers.items():
                uses[rank.host, number][rank.gpu] += count
    return {place: min(of, key=lambda gpu: (-of[gpu], gpu)) for place, of in uses.items()}


def _rate(mbps: int | None) -> Fraction | None:
    return Fraction(mbps * 10**6, 8) if mbps else None
