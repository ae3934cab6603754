"""Every family of schedules by the name that plan files use."""

from __future__ import annotations

from optcc.schedule.nested import NestedRings
from optcc.schedule.optcc_paper import OptccPaper
from optcc.schedule.r2cc import R2cc
from optcc.schedule.recipe import Recipe
from optcc.schedule.ring import Ring

FAMILIES: dict[str, type[Recipe]] = {recipe.family: recipe for recipe in (NestedRings, Ring, R2cc, OptccPaper)}
