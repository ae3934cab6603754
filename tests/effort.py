"""How many random cases a test tries: a twentieth in `make test`, an eighth in `make test-long`, all with `--whole`.

`make test` leaves out tests marked ``long``. `pytest --long`, which `make test-long` and CI run, takes all tests;
``pytest --whole`` takes them with all random cases, for a night.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings

SHARES = {"short": 20, "long": 8, "whole": 1}
"""One of so many cases is tried; at 10 in place of 20 `make test` takes about one minute of processor time more.
CI draws other cases with each commit."""

level = "short"
"""Set by --long and --whole, before the first test is read."""


def cases(of: int) -> int:
    """How many of `of` random cases are tried now."""
    return -(-of // SHARES[level])


def examples(of: int, **more: Any) -> settings:
    """Hypothesis' settings for `of` random cases; a decorator."""
    return settings(max_examples=cases(of), **more)
