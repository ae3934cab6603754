"""Public docstrings say what a caller cannot guess: units, errors, where a formula comes from; the check can fail."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

PACKAGES = ("optcc", "optcc.theory", "optcc.runtime")

# Parts of names that are quantities -> what their docstring must say, in the function's own or in its class's.
UNITS = {
    r"(.*_)?(nbytes|bytes|size|length|offset)": r"\bbytes?\b",
    r".*_s|alpha|per_chunk|seconds|timeout": r"\bseconds?\b",
    r"(.*_)?rates?": r"bytes per second|bytes/s",
}


def public(*packages: str) -> Iterator[tuple[str, Any, str]]:
    """Every public function, class, method and property: name, object, and the text that may describe it."""
    for package in packages:
        module = import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            yield f"{package}.{name}", value, inspect.getdoc(value) or ""
            if inspect.isclass(value):
                for member, inner in vars(value).items():
                    plain = (
                        getattr(inner, "fget", None)
                        or getattr(inner, "func", None)
                        or getattr(inner, "__func__", inner)
                    )
                    if not member.startswith("_") and inspect.isfunction(plain):
                        yield (
                            f"{package}.{name}.{member}",
                            plain,
                            f"{inspect.getdoc(plain) or ''}\n{inspect.getdoc(value) or ''}",
                        )


def faults(name: str, value: Any, described: str) -> list[str]:
    """What a docstring leaves out."""
    if not (inspect.getdoc(value) or "").strip():
        return [f"{name}: no docstring"]
    found = []
    for quantity in quantities(value):
        for pattern, unit in UNITS.items():
            if re.fullmatch(pattern, quantity) and not re.search(unit, described):
                found.append(f"{name}: no unit of {quantity}")
    found += [
        f"{name}: raises {error}, unsaid"
        for error in raised(value)
        if not re.search(rf"\b{error}\b|[Rr]aises? as", described)
    ]
    if name.startswith("optcc.theory.") and inspect.isfunction(value):
        sources = f"{described}\n{inspect.getmodule(value).__doc__}"  # type: ignore[union-attr]
        if not re.search(r"[Pp]roof|proofs/|\bid\b", sources):
            found.append(f"{name}: no source")
    return found


def quantities(value: Any) -> list[str]:
    """Names of numbers that a function takes, or that a dataclass holds."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return []
    numbers = ("int", "float", "Fraction", "Number", "ndarray", "NDArray")
    return [p.name for p in parameters if any(number in str(p.annotation) for number in numbers)]


def raised(value: Any) -> list[str]:
    """Errors of ours that a function raises itself; what it calls is not looked into."""
    if not inspect.isfunction(value):
        return []
    tree = ast.parse(textwrap.dedent(inspect.getsource(value)))
    calls = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)]
    names = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
    return sorted(name for name in names if name.endswith("Error"))


@pytest.mark.parametrize("package", [*PACKAGES, pytest.param("optcc.pytorch", marks=pytest.mark.torch)])
def test_docstrings_say_what_a_caller_needs(package: str) -> None:
    mine = list(public(package))
    assert mine
    assert [fault for entry in mine for fault in faults(*entry)] == []


def bare(nbytes: int) -> None: ...


def without_units(nbytes: int, timeout: float, rate: float) -> None:
    """Sends."""


def with_units(nbytes: int, timeout: float, rate: float) -> None:
    """Sends `nbytes` bytes at `rate` bytes per second within `timeout` seconds."""


def without_error() -> None:
    """Tries."""
    raise InputError("no")


def with_error() -> None:
    """Tries. Raises InputError."""
    raise InputError("no")


class InputError(Exception): ...


@pytest.mark.parametrize(
    ("value", "missing"),
    [
        (bare, ["f: no docstring"]),
        (without_units, ["f: no unit of nbytes", "f: no unit of timeout", "f: no unit of rate"]),
        (with_units, []),
        (without_error, ["f: raises InputError, unsaid"]),
        (with_error, []),
    ],
)
def test_what_is_missing_is_found(value: Any, missing: list[str]) -> None:
    assert faults("f", value, inspect.getdoc(value) or "") == missing


def test_a_formula_without_a_source_is_found() -> None:
    assert faults("optcc.theory.f", with_error, with_error.__doc__ or "") == ["optcc.theory.f: no source"]
