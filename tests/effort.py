"""How much a test tries: little in `make test`, all of it in `make test-long`.

`make test` leaves out tests marked ``long`` and draws a twentieth of the random cases of the others. `pytest --long`,
which `make test-long` runs, takes the tests marked ``long`` and those on random cases, with all their cases.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings

SHARE = 20  # at 10 `make test` takes about one minute of processor time more

whole = False
"""Whether all cases are drawn; set by --long, before the first test is read."""


def cases(of: int) -> int:
    """How many of `of` random cases are tried now."""
    return of if whole else -(-of // SHARE)


def examples(of: int, **more: Any) -> settings:
    """Hypothesis' settings for `of` random cases; a decorator."""
    return settings(max_examples=cases(of), **more)
