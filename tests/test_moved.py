"""Old names of modules still lead to the same classes, and say what the new name is."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest
from optcc.moved import MOVED


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_is_the_same_module(old: str) -> None:
    for name in [name for name in sys.modules if name == old or name.startswith(old + ".")]:
        del sys.modules[name]
    with pytest.warns(DeprecationWarning, match=f"{old} is {MOVED[old]} now"):
        found = import_module(old)
    assert found is import_module(MOVED[old])


def test_no_other_name_leads_anywhere() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_module("optcc.ladder")
