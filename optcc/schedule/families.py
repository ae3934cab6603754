"""Every family of schedules by the name that plan files use: what the planner tries first comes first."""

from __future__ import annotations

from optcc.schedule.direct import DirectExchange
from optcc.schedule.grouped import GroupedExchange
from optcc.schedule.inside import InsideServers
from optcc.schedule.nested import NestedRings
from optcc.schedule.optcc_paper import OptccPaper
from optcc.schedule.packed import PackedTrees
from optcc.schedule.r2cc import R2cc
from optcc.schedule.recipe import Recipe
from optcc.schedule.ring import PlainRing
from optcc.schedule.striped import StripedExchange
from optcc.schedule.trees import ComplementaryTrees

FAMILIES: dict[str, type[Recipe]] = {
    recipe.family: recipe
    for recipe in (
        NestedRings,
        DirectExchange,
        StripedExchange,
        GroupedExchange,
        ComplementaryTrees,
        InsideServers,
        PackedTrees,
        PlainRing,
        R2cc,
        OptccPaper,
    )
}
