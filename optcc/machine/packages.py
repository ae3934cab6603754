"""Versions of installed packages, by the name that one imports."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version


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
