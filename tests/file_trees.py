"""Files of every format as trees of dictionaries and lists, and structural faults in trees. No code of the readers."""

from __future__ import annotations

import copy
import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Tree = Any
"""Dictionaries by text, lists, numbers, texts."""


@dataclass(frozen=True)
class FileFormat:
    """How a file, or one per rank, is a tree, and back."""

    parse: Callable[[list[bytes]], Tree]
    write: Callable[[Tree], list[bytes]]


def _goal_in(files: list[bytes]) -> Tree:
    """{"ranks": [{"ops": [...], "waits": [{"who": a label, "for": another}, ...]}, ...]}"""
    ranks: list[dict[str, Any]] = []
    how: list[str] = []
    for line in files[0].decode().splitlines():
        words = line.replace(":", " ").split()
        if line.startswith("rank "):
            ranks.append({"ops": [], "waits": []})
        elif line.startswith("// optcc"):
            how = words[2:]
        elif "requires" in words:
            ranks[-1]["waits"].append({"who": int(words[0][1:]), "for": int(words[2][1:])})
        elif len(words) > 5:
            numbers = [int(each) for each in re.findall(r"[0-9]+", line)]
            names = ("label", "nbytes", "peer", "tag", "cpu", "nic")
            op = {"kind": words[1], **dict(zip(names, numbers, strict=True))}
            ranks[-1]["ops"].append({**op, "offset": int(how[0]), "how": how[1]})
    return {"ranks": ranks}


def _goal_out(tree: Tree) -> list[bytes]:
    lines = [f"num_ranks {len(tree['ranks'])}", ""]
    for number, rank in enumerate(tree["ranks"]):
        lines.append(f"rank {number} {{")
        for op in rank["ops"]:
            way = "to" if op["kind"] == "send" else "from"
            lines.append(f"// optcc {op['offset']} {op['how']}")
            lines.append(
                f"l{op['label']}: {op['kind']} {op['nbytes']}b {way} {op['peer']} "
                f"tag {op['tag']} cpu {op['cpu']} nic {op['nic']}"
            )
        lines += [f"l{wait['who']} requires l{wait['for']}" for wait in rank["waits"]]
        lines += ["}", ""]
    return ["\n".join(lines).encode()]


def _number_in(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def _number_out(value: int) -> bytes:
    made = bytearray()
    value &= 2**64 - 1
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of a message of protobuf: whole numbers, or bytes."""
    at = 0
    while at < len(data):
        key, at = _number_in(data, at)
        value, at = _number_in(data, at)
        if key & 7 == 2:
            yield key >> 3, data[at : at + value]
            at += value
        else:
            yield key >> 3, value


def _numbers(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        value, at = _number_in(data, at)
        found.append(value)
    return found


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _number_out(number << 3) + _number_out(value)
    return _number_out(number << 3 | 2) + _number_out(len(value)) + value


def _chakra_in(files: list[bytes]) -> Tree:
    """{"ranks": [{"head": ..., "nodes": [{"id", "name", "type", "ctrl", "data", "attrs": [...]}]}]}"""
    ranks = []
    for data in files:
        messages, at = [], 0
        while at < len(data):
            length, at = _number_in(data, at)
            messages.append(data[at : at + length])
            at += length
        nodes = []
        for message in messages[1:]:
            node: dict[str, Any] = {"id": 0, "name": "", "type": 0, "ctrl": [], "data": [], "attrs": []}
            for number, value in _fields(message):
                if number in (4, 5):
                    node["ctrl" if number == 4 else "data"] += [value] if isinstance(value, int) else _numbers(value)
                elif number == 10:
                    (_, name), *rest = _fields(value)
                    field, what = rest[0]
                    node["attrs"].append({"name": name.decode(), "field": field, "value": what})
                else:
                    node[{1: "id", 2: "name", 3: "type"}[number]] = value.decode() if number == 2 else value
            nodes.append(node)
        ranks.append({"head": messages[0].hex(), "nodes": nodes})
    return {"ranks": ranks}


def _chakra_out(tree: Tree) -> list[bytes]:
    files = []
    for rank in tree["ranks"]:
        messages = [bytes.fromhex(rank["head"])]
        for node in rank["nodes"]:
            data = _field(1, node["id"]) + _field(2, node["name"].encode()) + _field(3, node["type"])
            for number, name in ((4, "ctrl"), (5, "data")):
                data += b"".join(_field(number, each) for each in node[name])
            for attr in node["attrs"]:
                data += _field(10, _field(1, attr["name"].encode()) + _field(attr["field"], attr["value"]))
            messages.append(data)
        files.append(b"".join(_number_out(len(each)) + each for each in messages))
    return files


def _json_in(files: list[bytes]) -> Tree:
    return json.loads(files[0])


def _json_out(tree: Tree) -> list[bytes]:
    return [json.dumps(tree).encode()]


GOAL, CHAKRA, JSON = (
    FileFormat(_goal_in, _goal_out),
    FileFormat(_chakra_in, _chakra_out),
    FileFormat(_json_in, _json_out),
)


# ---- faults ---------------------------------------------------------------------------------------------------------

Where = tuple[Any, Any]
"""A dictionary or list, and a key or place in it."""


def _places(tree: Tree, name: str = "") -> Iterator[tuple[str, Where]]:
    """Every place, by the name that it, or the list that it is in, has."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        mine = key if isinstance(key, str) else name
        yield mine, (tree, key)
        yield from _places(value, mine)


def broken(tree: Tree, rng: random.Random) -> tuple[Tree, str]:
    """A copy with a fault, and what it is. All names are broken equally often, however often they occur.

    What makes no difference, such as an exchange of equal parts, is tried anew on another copy: of the first some
    places may have gone.
    """
    while True:
        copied = copy.deepcopy(tree)
        by_name: dict[str, list[Where]] = defaultdict(list)
        for name, place in _places(copied):
            by_name[name].append(place)
        name = rng.choice(sorted(by_name))
        places = by_name[name]
        holder, key = rng.choice(places)
        other, there = rng.choice(places)
        value, another = holder[key], other[there]
        kind = rng.choice(("drop", "twice", "swap", "exchange", "as another", "number", "move", "a name more"))
        if kind == "drop":
            del holder[key]
        elif kind == "twice" and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(value))
        elif kind == "swap" and isinstance(holder, list) and len(holder) > 1:
            second = rng.randrange(len(holder))
            holder[key], holder[second] = holder[second], holder[key]
        elif kind == "exchange" and other is not holder:
            holder[key], other[there] = copy.deepcopy(another), copy.deepcopy(value)
        elif kind == "as another":
            holder[key] = copy.deepcopy(another)
        elif kind == "number" and type(value) is int:
            holder[key] = max(0, value + rng.choice((-1, 1, 1, 2)))
        elif kind == "move" and isinstance(holder, list) and isinstance(other, list) and other is not holder:
            other.insert(there, holder.pop(key))
        elif kind == "a name more" and isinstance(value, dict):
            value[rng.choice([*sorted(by_name), "tbg_info", "comment"])] = rng.choice(
                (0, 1, [], {"tb_id": 0, "tbg_size": 2})
            )
        else:
            continue
        if copied != tree:
            return copied, f"{kind} of {name}"
