"""What people say beside a topology: which NICs count (``--nics``), and at what rate (``--nic-rate``)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from fractions import Fraction

from optcc.errors import InputError
from optcc.values.cluster import Cluster, Nic
from optcc.values.units import parse_rate

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
            shown = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
            raise InputError(
                "no NIC of this name", where=option, expected=f"among {shown}", got=pattern, hint=_hint(pattern, known)
            )


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
