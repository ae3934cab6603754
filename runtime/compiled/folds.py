"""Folds, compiled: for every type and operation here the same bits as `devices.host.fold` makes.

One operation per element, rounded once to its type; every NaN that comes out is the quiet one; minimum and maximum are
minimumNumber and maximumNumber of IEEE 754-2019. Types of two bytes are left to numpy: they are not here.
"""

# mypy: disable-error-code="untyped-decorator, misc, call-arg, call-overload, no-any-return, attr-defined"
from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import carray

from optcc.runtime.compiled.basics import KERNELS
from optcc.runtime.compiled.choice import TYPES
from optcc.runtime.devices.host import Op

_BITS = {"float32": "int32", "float64": "int64"}


def _sum(own: Any, landed: Any, count: int) -> None:
    a, b = carray(own, (count,)), carray(landed, (count,))
    for i in range(count):
        a[i] = a[i] + b[i]


def _product(own: Any, landed: Any, count: int) -> None:
    a, b = carray(own, (count,)), carray(landed, (count,))
    for i in range(count):
        a[i] = a[i] * b[i]


def _minimum(own: Any, landed: Any, count: int) -> None:
    a, b = carray(own, (count,)), carray(landed, (count,))
    for i in range(count):
        a[i] = b[i] if b[i] < a[i] else a[i]


def _maximum(own: Any, landed: Any, count: int) -> None:
    a, b = carray(own, (count,)), carray(landed, (count,))
    for i in range(count):
        a[i] = b[i] if b[i] > a[i] else a[i]


def _float_sum(own: Any, landed: Any, count: int) -> None:
    a, b = carray(own, (count,)), carray(landed, (count,))
    for i in range(count):
        made = a[i] + b[i]
        a[i] = made if made == made else np.nan


def _float_product(own: Any, landed: Any, count: int) -> None:
    a, b = carray(own, (count,)), carray(landed, (count,))
    for i in range(count):
        made = a[i] * b[i]
        a[i] = made if made == made else np.nan


def _chooses(kind: str, last: bool) -> Callable[[Any, Any, int], None]:
    """Minimum or maximum of floats, over their bits as signed integers of `kind`."""
    info = np.iinfo(kind)
    infinity = np.array([np.inf], {"int32": "float32", "int64": "float64"}[kind]).view(kind)[0]
    whole = infinity.dtype.type
    rest, shift = whole(info.max), whole(info.bits - 1)
    quiet = infinity | (infinity & -infinity) >> whole(1)

    def choose(own: Any, landed: Any, count: int) -> None:
        a, b = carray(own, (count,)), carray(landed, (count,))
        for i in range(count):
            x, y = a[i], b[i]
            # Integers that count up as the floats do: of negative ones all bits but the sign are turned.
            p, q = x ^ ((x >> shift) & rest), y ^ ((y >> shift) & rest)
            better = q > p if last else q < p
            made = y if better else x
            made = x if (y & rest) > infinity else made
            made = y if (x & rest) > infinity else made
            a[i] = quiet if (made & rest) > infinity else made

    return choose


_OF_WHOLE = {Op.SUM: _sum, Op.PROD: _product, Op.MIN: _minimum, Op.MAX: _maximum}
_OF_FLOATS = {Op.SUM: _float_sum, Op.PROD: _float_product}


@cache
def fold_of(op: Op, name: str) -> Any:
    """The fold of elements of a type, as numba's cfunc: (own, landed, count); own = own op landed. None: not here."""
    if name not in TYPES:
        return None
    work: Callable[[Any, Any, int], None]
    if name not in _BITS:
        work, kind = _OF_WHOLE[op], name
    elif op in _OF_FLOATS:
        work, kind = _OF_FLOATS[op], name
    else:
        kind = _BITS[name]
        work = _chooses(kind, op is Op.MAX)
    return KERNELS.callback(f"void(CPointer({kind}), CPointer({kind}), int64)", work)
