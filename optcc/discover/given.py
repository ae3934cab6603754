"""What people say beside a topology: which NICs count (``--nics``), at what rate (``--nic-rate``), the hosts' names
(``--hosts``), and failures (``--fail``, ``--fault``).

``--fail server1/mlx5_0`` is a dead NIC, ``server1/mlx5_0=3/8`` one with 3/8 of its rate. ``server[0-2]/nic*=150Gb/s``
are several with 150 Gb/s each, ``server3=50%`` a server's NICs at half.

Lists of hosts are Slurm's ``gpu[001-004,007],big-[1-3]x[0,1]`` and mpirun's ``host1:8,host2:8``, or a host file of
mpirun with a host in each line, or a range of them, with its slots (``host1 slots=8``) or without; a host that comes
again has more slots. ClusterShell's NodeSet (LGPL) expands ranges, each item by itself, for it sorts, and without
groups, which can run commands. The size of a range is counted before it is expanded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import TYPE_CHECKING, NoReturn

from optcc.errors import InputError, some
from optcc.values.cluster import MAX_COUNT, Cluster, Nic
from optcc.values.units import parse_fraction, parse_rate, parse_seconds

if TYPE_CHECKING:
    from optcc.simulation.faults import Fault


HCA = "As in NCCL_IB_HCA: mlx5_0,mlx5_1 or =mlx5_0 or ^mlx5_3, with a port mlx5_0:1; rails are rail: in YAML."
_WITH_RAIL = re.compile(r"[A-Za-z]\w*(?::[0-9]*){2,3}")  # NCCL_IB_HCA: NAME:PORT:RAIL:PLANE; no PCI address
LONGEST = 4096  # characters of one option
ANY_RATE = Fraction(50 * 10**9)


@dataclass(frozen=True)
class Given:
    """The options, read.

    nic_rate : bytes per second of the NICs whose rate the source does not give
    rates : (pattern, bytes per second): of NICs of that name, whatever the source says; the first that fits counts
    nics : patterns of the NICs that count; with `all_but`, of those that do not; none: the reader's own rule
    elsewhere : NICs that count on most other servers, so that a slow one here is a slow one, not a management port
    seen : the NICs that `wanted` was asked about: all that the source has, also those that do not count
    """

    nic_rate: Fraction | None = None
    rates: tuple[tuple[str, Fraction], ...] = ()
    nics: tuple[str, ...] = ()
    all_but: bool = False
    elsewhere: frozenset[str] = frozenset()
    seen: set[str] = field(default_factory=set, compare=False, repr=False)

    @classmethod
    def parse(cls, nic_rate: str | None = None, nics: str | None = None) -> Given:
        """Of ``400Gb/s,mlx5_8=25Gb/s`` and of ``mlx5_[0-7]`` or ``^mlx5_8,mlx5_9``. Raises InputError."""
        default: Fraction | None = None
        rates = []
        for item in _items(nic_rate, "--nic-rate"):
            name, equals, text = item.rpartition("=")
            rate = parse_rate(text, "--nic-rate")
            if rate == 0:
                raise InputError("a rate of nothing", where="--nic-rate", expected="more than 0", got=item)
            if equals and not name:
                raise InputError("a rate of no NIC", where="--nic-rate", expected="NAME=RATE", got=item)
            if not equals and default is not None:
                raise InputError("two rates for all", where="--nic-rate", expected="one, and NAME=RATE", got=item)
            if equals:
                rates.append((name, rate))
            else:
                default = rate
        patterns = _items(nics, "--nics")
        all_but = bool(patterns) and patterns[0].startswith("^")
        if patterns:  # NCCL_IB_HCA's = says that names are whole, as they are here anyway
            patterns[0] = patterns[0].removeprefix("^").removeprefix("=")
        if any(not p or p.startswith("^") or "=" in p for p in patterns):
            expected = "NAME,NAME or ^NAME,NAME"
            raise InputError("not a list of NICs", where="--nics", expected=expected, got=nics, hint=HCA)
        if odd := next((p for p in patterns if _WITH_RAIL.fullmatch(p)), None):
            what = "a rail or plane beside a NIC's name"
            raise InputError(what, where="--nics", expected="NAME or NAME:PORT", got=odd, hint=HCA)
        return cls(default, tuple(rates), tuple(patterns), all_but)

    def of_all_nics(self) -> Given:
        """The same without --nics. The rate of what it leaves out is not told, maybe, and does not matter."""
        return Given(self.nic_rate or ANY_RATE, self.rates, elsewhere=self.elsewhere)

    def wanted(self, name: str) -> bool | None:
        """Whether the NIC counts; None where nothing was said, so that the reader's rule holds."""
        self.seen.add(name)
        if not self.nics:
            return None
        named = any(fits(name, pattern) for pattern in self.nics)
        if self.all_but:
            return False if named else None
        return named

    def rate_of(self, name: str) -> Fraction | None:
        """The rate said for a NIC of this name, None where none was."""
        return next((rate for pattern, rate in self.rates if fits(name, pattern)), None)

    def check_used(self, names: Iterable[str]) -> None:
        """Raise InputError for a pattern that no NIC of `names` fits, those that count; of what does not, that no NIC
        of the source fits."""
        used = set(names)
        _check_fits("--nic-rate", [pattern for pattern, _ in self.rates], used)
        if self.all_but:
            self.check_seen()
        else:
            _check_fits("--nics", self.nics, used)

    def check_seen(self) -> None:
        """Raise InputError for a pattern of --nics that no NIC of the source fits, whether it counts or not."""
        _check_fits("--nics", self.nics, self.seen)


def fits(name: str, pattern: str) -> bool:
    """Whether NIC `name` is meant by a name or glob. Its port 1 goes by the name alone; NCCL_IB_HCA writes NAME:1."""
    return fnmatchcase(name, pattern) or (pattern.endswith(":1") and fnmatchcase(name, pattern[:-2]))


def _hint(pattern: str, names: Iterable[str]) -> str | None:
    """What NCCL_IB_HCA would have meant, where that is a NIC."""
    if any(name.startswith(pattern) for name in names):
        return f"Unlike in NCCL_IB_HCA a name is whole: {pattern}* are all that begin so."
    if any(name == pattern.partition(":")[0] for name in names):
        return f"Here the NIC goes by {pattern.partition(':')[0]}, whatever its port."
    return None


def _check_fits(option: str, patterns: Iterable[str], names: set[str]) -> None:
    known = sorted(names)
    for pattern in patterns:
        if not any(fits(name, pattern) for name in known):
            expected, hint = f"among {some(known, 12)}", _hint(pattern, known)
            raise InputError("no NIC of this name", where=option, expected=expected, got=pattern, hint=hint)


def apply_given(cluster: Cluster, given: Given) -> Cluster:
    """`cluster` with the NICs that count, at the rates said for them by name."""
    if not (given.rates or given.nics):
        return cluster
    wanted = {nic.name: given.wanted(nic.name) for server in cluster.servers for nic in server.nics}
    given.check_seen()
    servers = []
    for server in cluster.servers:
        nics = tuple(_rated(nic, given) for nic in server.nics if wanted[nic.name] is not False)
        if not nics:
            raise InputError("no NIC is left", where=f"--nics: {server.name}", expected="at least one")
        servers.append(replace(server, nics=nics))
    pristine = None if cluster.pristine is None else apply_given(cluster.pristine, given)
    return replace(cluster, servers=tuple(servers), pristine=pristine)


def _rated(nic: Nic, given: Given) -> Nic:
    rate = given.rate_of(nic.name)
    return nic if rate is None else replace(nic, out_rate=rate, in_rate=rate)


def _items(text: str | None, option: str) -> list[str]:
    if text is None:
        return []
    if len(text) > LONGEST:
        raise InputError("too long", where=option, expected=f"at most {LONGEST} characters", got=len(text))
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise InputError("an empty item", where=option, expected="items with commas between them", got=text[:80])
    return items


MAX_HOSTS = 65536
"""As many as --servers takes; Slurm's own largest clusters have some 10,000."""

LONGEST_LIST = 65536  # characters
_ITEM = re.compile(r"(?:[A-Za-z0-9._-]|\[[0-9,-]+\])+", re.ASCII)
_SLOTS = re.compile(r":[0-9]{1,6}$|:\*$")
_FILE_LINE = re.compile(
    r"([A-Za-z0-9](?:[\w.-]|\[[0-9,-]+\]){0,254})(?::[0-9]{1,6})?"
    r"(?:\s+(?:(?:max[_-]?)?slots {0,4}= {0,4}[0-9]{1,6}|"
    r"(?!(?:max[_-]?)?slots\b)[a-z][\w-]{0,19} {0,4}= {0,4}[\w,:-]{1,80}))*",
    re.ASCII,
)
_EXAMPLE = "names such as node[001-004,007],login, host1:8,host2:8 or $SLURM_JOB_NODELIST"


def expand_hosts(text: str, where: str = "--hosts") -> list[str]:
    """The names, each once, in the list's order. Raises InputError for what is no list, or too long a one."""
    if len(text) > LONGEST_LIST:
        raise InputError(
            "too long a list of hosts", where=where, expected=f"at most {LONGEST_LIST} characters", got=len(text)
        )
    if "\n" in text.strip() or re.search(r"\s\w+ ?=", text):
        return _host_file(text, where)
    items = re.split(r",(?![^\[]*\])", text.strip())
    names: list[str] = []
    for item in items:
        _refuse_ipv6(item.strip(), where)
    for item in (_SLOTS.sub("", item.strip()) for item in items):
        if not _ITEM.fullmatch(item.strip()):
            raise InputError("not a list of hosts", where=where, expected=_EXAMPLE, got=item[:80] or text[:80])
        names += _expand(item.strip(), where)
        if len(names) > MAX_HOSTS:
            raise InputError("too many hosts", where=where, expected=f"at most {MAX_HOSTS}", got=len(names))
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise InputError("a host twice", where=where, expected="each host once", got=name)
    return names


def _refuse_ipv6(item: str, where: str) -> None:
    if item.count(":") > 1 and re.fullmatch(r"\[?[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]?(?::\d+)?", item):
        hint = "Give the host's name, or its IPv4 address, as logs and tools call it."
        raise InputError("an IPv6 address in a list of hosts", where=where, expected="names", got=item[:80], hint=hint)


def _host_file(text: str, where: str) -> list[str]:
    names: dict[str, None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        said = line.partition("#")[0].strip()
        if not said:
            continue
        _refuse_ipv6(said.split()[0], where)
        if (found := _FILE_LINE.fullmatch(said)) is None:
            expected = "a host in each line, as in host1 slots=8"
            raise InputError("not a list of hosts", where=f"{where}:{number}", expected=expected, got=said[:80])
        names.update(dict.fromkeys(_expand(found[1], f"{where}:{number}")))
    if not names or len(names) > MAX_HOSTS:
        got = f"{len(names)} hosts"
        raise InputError("not a list of hosts", where=where, expected=f"1 to {MAX_HOSTS} hosts", got=got)
    return list(names)


def _expand(item: str, where: str) -> list[str]:
    if "[" not in item:
        return [item]
    size = 1
    for ranges in re.findall(r"\[([0-9,-]+)\]", item):
        size *= sum(_length(part, item, where) for part in ranges.split(","))
        if size > MAX_HOSTS:
            raise InputError("too many hosts", where=where, expected=f"at most {MAX_HOSTS}", got=item[:80])
    try:
        from ClusterShell.NodeSet import NodeSet, NodeSetException
        from ClusterShell.NodeUtils import GroupResolver
    except ImportError:
        raise InputError(
            "needs ClusterShell",
            where=where,
            expected="names without ranges",
            got=item[:80],
            hint="pip install ClusterShell, or expand it: scontrol show hostnames LIST | paste -sd,.",
        ) from None
    try:
        return [str(node) for node in NodeSet(item, resolver=GroupResolver())]
    except NodeSetException as error:
        raise InputError("not a list of hosts", where=where, expected=_EXAMPLE, got=str(error)[:120]) from None


def _length(part: str, item: str, where: str) -> int:
    match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise InputError(
            "not a range", where=where, expected="a number, or first-last", got=f"{part[:40]} in {item[:80]}"
        )
    return int(match[2] or match[1]) - int(match[1]) + 1


NAMED = "SERVER/NIC[=LEFT], such as server1/nic0, server1/nic[0-3]=50% or server1=150Gb/s"
_RANGES = re.compile(r"\[([0-9]{1,9}(?:-[0-9]{1,9})?(?:,[0-9]{1,9}(?:-[0-9]{1,9})?)*)\]")


def parse_fail(text: str, option: str = "--fail") -> tuple[str, Fraction]:
    """``SERVER/NIC[=LEFT]`` to ("SERVER/NIC", fraction of its rate left); 0 when not given.

    For one NIC by its name, where no cluster is known yet. Raises InputError for anything else, or outside 0 to 1.
    """
    nic, given, left = text.partition("=")
    if nic.count("/") != 1 or nic.startswith("/") or nic.endswith("/"):
        raise InputError("not a NIC", where=option, expected="SERVER/NIC or SERVER/NIC=FRACTION_LEFT", got=text[:300])
    return nic, parse_fraction(left, f"{option} {nic[:300]}") if given else Fraction(0)


def parts_of(text: str, option: str = "--fail") -> tuple[tuple[str, Fraction], ...]:
    """``SERVER/NIC[=LEFT]`` or ``SERVER=LEFT`` to (SERVER/NIC or SERVER, fraction left), one for each of its ranges.

    For one pattern and several clusters; `fits` says whom a part means. Raises InputError as `parse_fail` does.
    """
    pattern, given, left = text.partition("=")
    if "/" not in pattern and not (pattern and given):
        expected = "SERVER/NIC, SERVER/NIC=FRACTION_LEFT or SERVER=FRACTION_LEFT, such as server1=37%"
        hint = "A server without a NIC takes no part in an AllReduce."
        raise InputError("not a NIC", where=option, expected=expected, got=text[:300], hint=hint)
    if "/" in pattern:
        pattern, fraction = parse_fail(text, option)
    else:
        fraction = parse_fraction(left, f"{option} {pattern[:300]}")
        if not fraction:
            _refuse_whole(text, option)
    server, slash, nic = pattern.partition("/")
    nics = _expanded(nic, option) if slash else [""]
    return tuple((f"{each}{slash}{one}", fraction) for each in _expanded(server, option) for one in nics)


def fits_nic(part: str, nic: str) -> bool:
    """Whether a part of ``--fail`` means the NIC of this name, SERVER/NIC."""
    name = nic if "/" in part else nic.partition("/")[0]
    return name in (part, part.removesuffix(":1")) or bool(_glob(part).fullmatch(name))


def _refuse_whole(text: str, where: str) -> NoReturn:
    raise InputError(
        "a server without a NIC takes no part in an AllReduce",
        where=where,
        expected="SERVER=LEFT with more than 0 left, such as server1=37%",
        got=text[:300],
        hint="Leave the server out of the topology, or name the NICs that failed.",
    )


def apply_failures(cluster: Cluster, texts: Iterable[str]) -> Cluster:
    """`cluster` with every ``--fail`` of `texts` applied.

    Names may hold ``*``, ``?`` and ranges as Slurm writes them, ``[0-3,5]``; without a NIC all of the server are meant.
    Raises InputError for a name that fits no NIC of the cluster, a NIC given twice, and more than a NIC's rate. It is
    also raised for a server without a NIC left because it was named whole.
    """
    seen: set[str] = set()
    for text in texts:
        pattern, given, left = text.partition("=")
        where = f"--fail {pattern[:300]}"
        names = _named(cluster, pattern, text)
        if "/" not in pattern and (not given or _is_none(left)):
            _refuse_whole(text, where)
        for nic in names:
            if nic in seen:
                raise InputError("the same NIC twice", where="--fail", expected="each NIC once", got=nic)
            seen.add(nic)
            try:
                cluster = cluster.degrade(nic, left if given else 0)
            except InputError as error:
                raise InputError(
                    error.what, where=where, expected=error.expected, got=error.got, hint=error.hint
                ) from None
    return cluster


def _is_none(left: str) -> bool:
    for parse in (parse_fraction, parse_rate):
        try:
            return parse(left) == 0
        except InputError:
            continue
    return False


def _named(cluster: Cluster, pattern: str, text: str) -> list[str]:
    """SERVER/NIC names of the NICs that SERVER or SERVER/NIC fits, in the cluster's order."""
    server_pattern, slash, nic_pattern = pattern.partition("/")
    if not server_pattern or (slash and not nic_pattern) or "/" in nic_pattern:
        raise InputError("not a NIC", where="--fail", expected=NAMED, got=text[:300])
    names = [server.name for server in cluster.servers]
    wanted = set(_fitting(names, server_pattern, "server in the cluster", pattern))
    servers = [server for server in cluster.servers if server.name in wanted]
    found = []
    for server in servers:
        nics = [nic.name for nic in server.nics]
        fitting = _fitting(nics, nic_pattern, f"NIC in {server.name}", pattern) if slash else nics
        found += [f"{server.name}/{nic}" for nic in fitting]
    return found


def _fitting(names: list[str], pattern: str, what: str, whole: str) -> list[str]:
    """The names that are meant, in their order. InputError where a part of the pattern fits none."""
    found: set[str] = set()
    for each in _expanded(pattern, f"--fail {whole[:300]}"):
        # NCCL_IB_HCA's NAME:1 is NAME, whose port 1 it is.
        meant = {name for name in names if name in (each, each.removesuffix(":1")) or _glob(each).fullmatch(name)}
        if not meant:
            where = f"--fail {whole[:300]}"
            raise InputError(f"no such {what}", where=where, expected=f"one of {some(names, 12)}", got=each[:300])
        found |= meant
    return [name for name in names if name in found]


def _expanded(pattern: str, where: str) -> list[str]:
    """A pattern with each [0-3,5] as the numbers that it lists, of as many digits as are written."""
    match = _RANGES.search(pattern)
    if match is None:
        return [pattern]
    numbers: list[str] = []
    for part in match[1].split(","):
        first, _, last = part.partition("-")
        start, end = int(first), int(last or first)
        if not start <= end < start + MAX_COUNT:
            raise InputError("not a range", where=where, expected="first-last, the lower one first", got=part)
        numbers += [str(number).zfill(len(first)) for number in range(start, end + 1)]
    rest = _expanded(pattern[match.end() :], where)
    if len(numbers) * len(rest) > MAX_COUNT:
        raise InputError("too many names", where=where, expected=f"at most {MAX_COUNT}", got=pattern[:300])
    return [f"{pattern[: match.start()]}{number}{tail}" for number in numbers for tail in rest]


def _glob(pattern: str) -> re.Pattern[str]:
    return re.compile("".join(".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern))


def parse_fault(text: str, detect_s: Fraction) -> Fault:
    """``SERVER/NIC@TIME[=FRACTION_LEFT]``: what happens to a NIC while a collective runs.

    Raises InputError for anything else.
    """
    head, given, left = text.partition("=")
    nic, at, time = head.rpartition("@")
    if not at:
        expected = "SERVER/NIC@TIME or SERVER/NIC@TIME=FRACTION_LEFT, such as server1/nic0@0.4ms"
        raise InputError("not a fault", where="--fault", expected=expected, got=text[:300])
    _, fraction = parse_fail(f"{nic}={left}" if given else nic, "--fault")
    from optcc.simulation.faults import Fault  # loads compiled code, which other commands do without

    return Fault(nic, parse_seconds(time, where="--fault"), fraction, detect_s)
