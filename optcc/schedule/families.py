"""Every family of schedules by the name that plan files use: what the planner tries first comes first."""

from __future__ import annotations

from optcc.schedule.baselines import OptccPaper, R2cc
from optcc.schedule.direct import DirectExchange
from optcc.schedule.grouped import GroupedExchange
from optcc.schedule.halving import RecursiveHalving
from optcc.schedule.inside import InsideServers
from optcc.schedule.nccl_tree import NcclTree
from optcc.schedule.nested import NestedRings
from optcc.schedule.packed import PackedTrees
from optcc.schedule.recipe import Recipe
from optcc.schedule.ring import PlainRing
from optcc.schedule.striped import StripedExchange
from optcc.schedule.trees import ComplementaryTrees
from optcc.schedule.whole import WholeVectors

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
        WholeVectors,
        RecursiveHalving,
        PlainRing,
        NcclTree,
        R2cc,
        OptccPaper,
    )
}
