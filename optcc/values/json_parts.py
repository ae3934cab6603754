"""Values in JSON that are made of others: what may be null, arrays, pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from optcc.values.json_types import Codec, Defs, FieldError, Json


def placed(step: str | int, do: Callable[[Any], Any], value: Any) -> Any:
    """`do(value)`, errors seen from what has `value` as member or item `step`."""
    try:
        return do(value)
    except FieldError as error:
        raise error.inside(step) from None


@dataclass(frozen=True)
class Nullable(Codec):
    """Null, or as `inner` says."""

    inner: Codec

    def read(self, raw: Json) -> Any:
        return None if raw is None else self.inner.read(raw)

    def check(self, value: Any) -> None:
        if value is not None:
            self.inner.check(value)

    def write(self, value: Any) -> Json:
        return None if value is None else self.inner.write(value)

    def schema(self, defs: Defs) -> dict[str, Any]:
        return {"anyOf": [self.inner.schema(defs), {"type": "null"}]}


@dataclass(frozen=True)
class Array(Codec):
    """`least` items or more, all as `item` says."""

    item: Codec
    least: int = 0

    def read(self, raw: Json) -> tuple[Any, ...]:
        if type(raw) is not list or len(raw) < self.least:
            raise FieldError(f"an array of {self.least} or more" if self.least else "an array", raw)
        return tuple(placed(i, self.item.read, part) for i, part in enumerate(raw))

    def check(self, value: Any) -> None:
        if len(value) < self.least:
            raise FieldError(f"{self.least} or more", len(value))
        for i, part in enumerate(value):
            placed(i, self.item.check, part)

    def write(self, value: Any) -> Json:
        return list(map(self.item.write, value))

    def schema(self, defs: Defs) -> dict[str, Any]:
        least = {"minItems": self.least} if self.least else {}
        return {"type": "array", "items": self.item.schema(defs), **least}


@dataclass(frozen=True)
class Pair(Codec):
    """An array of as many items as there are `items`, each of its own type."""

    items: list[Codec]

    def read(self, raw: Json) -> tuple[Any, ...]:
        if type(raw) is not list or len(raw) != len(self.items):
            raise FieldError(f"an array of {len(self.items)}", raw)
        return tuple(placed(i, item.read, raw[i]) for i, item in enumerate(self.items))

    def check(self, value: Any) -> None:
        for i, item in enumerate(self.items):
            placed(i, item.check, value[i])

    def write(self, value: Any) -> Json:
        return [item.write(part) for item, part in zip(self.items, value, strict=True)]

    def schema(self, defs: Defs) -> dict[str, Any]:
        items = [item.schema(defs) for item in self.items]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
