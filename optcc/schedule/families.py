"""Every family of schedules by the name that plan files use."""

from __future__ import annotations

from optcc.schedule.apart import ApartExchange
from optcc.schedule.exchange import Exchange
from optcc.schedule.grouped import GroupedExchange
from optcc.schedule.inside import InsideServers
from optcc.schedule.latin import LatinExchange
from optcc.schedule.lockstep import LockstepExchange
from optcc.schedule.mixed import MixedExchange
from optcc.schedule.nested import NestedRings
from optcc.schedule.optcc_paper import OptccPaper
from optcc.schedule.packed import PackedTrees
from optcc.schedule.r2cc import R2cc
from optcc.schedule.recipe import Recipe
from optcc.schedule.ring import Ring
from optcc.schedule.steady import SteadyExchange
from optcc.schedule.timetable import Timetable
from optcc.schedule.trees import ComplementaryTrees

FAMILIES: dict[str, type[Recipe]] = {
    recipe.family: recipe
    for recipe in (
        NestedRings,
        Exchange,
        Timetable,
        LockstepExchange,
        LatinExchange,
        SteadyExchange,
        GroupedExchange,
        ApartExchange,
        MixedExchange,
        ComplementaryTrees,
        PackedTrees,
        InsideServers,
        Ring,
        R2cc,
        OptccPaper,
    )
}
