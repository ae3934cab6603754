"""MSCCL++ plans, parsed from JSON, with a planted fault each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

Json = dict[str, Any]


def _ops(plan: Json, name: str, kind: str | None = None) -> Iterator[tuple[list[Json], int, Json]]:
    """(operations of the threadblock, place, operation) of every operation of that name."""
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            for i, op in enumerate(block["ops"]):
                if op["name"] == name and (kind is None or op["channel_type"] == kind):
                    yield block["ops"], i, op


def _between(plan: Json, before: str, after: str) -> tuple[list[Json], int]:
    """The place of a nop between two such operations."""
    return next(
        (ops, i) for ops, i, _ in _ops(plan, "nop")
        if 0 < i < len(ops) - 1 and ops[i - 1]["name"] == before and ops[i + 1]["name"] == after
    )  # fmt: skip


def drop_nop(before: str, after: str) -> Callable[[Json], None]:
    def mutate(plan: Json) -> None:
        ops, i = _between(plan, before, after)
        del ops[i]

    return mutate


def drop_wait(plan: Json) -> None:
    ops, i, _ = next(_ops(plan, "wait"))
    del ops[i]


def drop_last_wait(plan: Json) -> None:
    ops, i, _ = list(_ops(plan, "wait"))[-1]
    del ops[i]


def drop_all_flushes(plan: Json) -> None:
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            block["ops"] = [op for op in block["ops"] if op["name"] != "flush"]


def flush_of_nothing(plan: Json) -> None:
    for _, _, op in _ops(plan, "flush"):
        del op["dst_buff"]


def put_without_signal(plan: Json) -> None:
    next(_ops(plan, "pws"))[2]["name"] = "put"


def put_with_signal_on_memory(plan: Json) -> None:
    ops, i, op = next(_ops(plan, "put", "memory"))
    op["name"] = "pws"
    del ops[i + 1 : i + 3]  # the nop and the signal


def signal_twice(plan: Json) -> None:
    ops, i, op = next(_ops(plan, "pws"))
    ops.insert(i + 1, {"name": "signal", "channel_type": op["channel_type"], "channel_ids": op["channel_ids"]})


def put_elsewhere(plan: Json) -> None:
    op = next(op for _, _, op in _ops(plan, "pws") if op["dst_buff"][0]["index"] > 0)
    op["dst_buff"][0]["index"] -= 1


def put_outside(plan: Json) -> None:
    next(_ops(plan, "pws"))[2]["dst_buff"][0]["index"] = 10**6


def put_other_chunks(plan: Json) -> None:
    ops = [op for _, _, op in _ops(plan, "pws")]
    one = ops[0]
    other = next(
        op
        for op in ops
        if op["src_buff"][0] != one["src_buff"][0] and op["src_buff"][0]["size"] == one["src_buff"][0]["size"]
    )
    one["src_buff"] = copy.deepcopy(other["src_buff"])


def put_less(plan: Json) -> None:
    next(_ops(plan, "pws"))[2]["src_buff"][0]["size"] += 1


def add_twice(plan: Json) -> None:
    ops, i, op = next(_ops(plan, "re"))
    ops[i + 1 : i + 1] = [{"name": "nop"}, copy.deepcopy(op)]


def copy_instead_of_adding(plan: Json) -> None:
    op = next(_ops(plan, "re"))[2]
    op["name"], op["src_buff"] = "copy", op["src_buff"][1:]


def add_before_it_came(plan: Json) -> None:
    ops, i = _between(plan, "wait", "re")
    ops[i - 1 : i + 2] = [ops[i + 1], ops[i], ops[i - 1]]


def add_other_scratch(plan: Json) -> None:
    ops = [op for _, _, op in _ops(plan, "re")]
    ops[0]["src_buff"][1]["index"] = 10**6


def share_scratch(plan: Json) -> None:
    """Two senders put into the same scratch."""
    gpu = plan["gpus"][-1]
    adds = [op for block in gpu["threadblocks"] for op in block["ops"] if op["name"] == "re"]
    same = next(
        (a, b) for a in adds for b in adds if a is not b and a["src_buff"][1]["size"] == b["src_buff"][1]["size"]
    )
    old, new = same[0]["src_buff"][1]["index"], same[1]["src_buff"][1]["index"]
    for other in plan["gpus"]:
        for block in other["threadblocks"]:
            refs = {ref["access_channel_type"]: ref["remote_buffer_ids"] for ref in block["remote_buffer_refs"]}
            for op in block["ops"]:
                for dst in op.get("dst_buff", ()):
                    if "buffer_id" in dst and dst["index"] == old and op["name"] != "flush":
                        remote = other["remote_buffers"][refs[op["channel_type"]][dst["buffer_id"]]]
                        if (remote["rank"], remote["type"]) == (len(plan["gpus"]) - 1, "s"):
                            dst["index"] = new
    same[0]["src_buff"][1]["index"] = new


def wait_first(plan: Json) -> None:
    """Every threadblock waits before it puts."""
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            block["ops"].sort(key=lambda op: op["name"] != "wait")


def other_peer(plan: Json) -> None:
    peers = plan["gpus"][0]["channels"][0]["connected_to"]
    peers[0] = next(r for r in range(1, len(plan["gpus"])) if r != peers[0])


def other_buffer(plan: Json) -> None:
    remote = plan["gpus"][0]["remote_buffers"][0]
    remote["rank"] = next(r for r in range(1, len(plan["gpus"])) if r != remote["rank"])


def no_such_channel(plan: Json) -> None:
    next(_ops(plan, "wait"))[2]["channel_ids"] = [99]


def drop_put(plan: Json) -> None:
    ops, i, _ = next(_ops(plan, "pws"))
    del ops[i]


MSCCLPP: dict[str, tuple[Callable[[Json], None], str]] = {
    "no nop between a wait and an addition": (drop_nop("wait", "re"), "race"),
    "no nop between an addition and a put": (drop_nop("re", "pws"), "race"),
    "a wait is missing": (drop_wait, "race|never waited|nothing was written"),
    "the last wait is missing": (drop_last_wait, "race|never waited"),
    "no flush": (drop_all_flushes, "race: the caller"),
    "flushes that name no destination": (flush_of_nothing, "race: the caller"),
    "a put without a signal": (put_without_signal, "deadlock"),
    "a signal too many": (signal_twice, "race|never waited"),
    "a put to the chunk before": (put_elsewhere, "race|missing|second time|nothing was written"),
    "a put outside the buffer": (put_outside, "outside"),
    "a put of other chunks": (put_other_chunks, "race|missing|second time|to chunk"),
    "a put of more than there is room for": (put_less, "different sizes"),
    "an addition twice": (add_twice, "second time"),
    "a copy instead of an addition": (copy_instead_of_adding, "missing"),
    "an addition before its bytes came": (add_before_it_came, "race|nothing was written"),
    "an addition of scratch that is not there": (add_other_scratch, "outside"),
    "two senders into one scratch": (share_scratch, "race|second time"),
    "everyone waits first": (wait_first, "deadlock"),
    "a channel to another rank": (other_peer, "another rank|deadlock|channels to rank .*, which has . back"),
    "a buffer of another rank": (other_buffer, "another rank"),
    "a channel that is not there": (no_such_channel, "does not have"),
    "a put is missing": (drop_put, "deadlock|race"),
}
MSCCLPP_MEMORY: dict[str, tuple[Callable[[Json], None], str]] = {
    "put with signal on a memory channel": (put_with_signal_on_memory, "deadlock"),
    "no nop between a put and its signal": (drop_nop("put", "signal"), "race"),
}
