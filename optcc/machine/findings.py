"""What the doctor says of one part of this machine; versions of installed packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version


@dataclass(frozen=True)
class PartFinding:
    """One part of an installation: whether the part is here, what was seen, what the part gives, how to get it."""

    part: str
    present: bool
    seen: str
    gives: str
    get: str = ""

    def as_json(self) -> dict[str, object]:
        """The finding as JSON values."""
        return asdict(self)


def package_version(name: str) -> str | None:
    """The version of what brings the package `name`, as both cvxpy and cvxpy-base bring cvxpy; None if unknown."""
    for distribution in _distributions().get(name, [name]):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return None


@cache
def _distributions() -> Mapping[str, list[str]]:
    return packages_distributions()  # reads all that is installed
