"""Every family of schedules by the name that plan files use."""

from __future__ import annotations

from optcc.schedule.nested import NestedRings
from optcc.schedule.recipe import Recipe

FAMILIES: dict[str, type[Recipe]] = {recipe.family: recipe for recipe in (NestedRings,)}
