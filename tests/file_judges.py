"""Interpreters that run a file's tree on numbers, in one random order of all that it allows. No code of the readers.

A rank's contribution is random, so a wrong sum shows. `RefusedError`: something that the rules of the target do not say
here, so no reader may call the file correct. `WrongError`: a circle, a loose end, a wrong sum.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.file_trees import Tree


class RefusedError(Exception):
    """A file that this judge cannot run."""


class WrongError(Exception):
    """A file that does not compute an AllReduce."""


def _need(holds: Any, what: str, error: type[Exception] = RefusedError) -> None:
    if not holds:
        raise error(what)


def _only(tree: Any, **kinds: Any) -> None:
    """`tree` has just these fields, of these kinds; a kind in a list: it may be missing."""
    _need(type(tree) is dict and tree.keys() <= kinds.keys(), f"fields {tree}")
    for name, kind in kinds.items():
        optional = isinstance(kind, list)
        _need(name in tree or optional, f"no {name}")
        if name in tree:
            _need(type(tree[name]) is (kind[0] if optional else kind), f"{name} is {tree[name]!r}")


class _Actors:
    """Whoever can do something does it, the first of a random order; now and then the order changes."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.each: dict[Any, Callable[[], bool | None]] = {}

    def add(self, name: Any, step: Callable[[], bool | None]) -> None:
        """`step` does the next thing and says True, or cannot and says False; None: it has done all that it will do."""
        self.each[name] = step

    def run(self) -> None:
        """Until nobody can do anything."""
        order = list(self.each)
        self.rng.shuffle(order)
        at = 0
        while at < len(order):
            did = self.each[order[at]]()
            if did is None:
                del order[at]
            at = at + 1 if did is False else 0
            if did and self.rng.random() < 0.1:
                order.insert(self.rng.randrange(len(order)), order.pop(self.rng.randrange(len(order))))


# ---- sends and receives ---------------------------------------------------------------------------------------------


def judge_goal(tree: Tree, nbytes: int, rng: random.Random) -> None:
    """A GOAL file's tree."""
    _only(tree, ranks=list)
    ranks = []
    for rank in tree["ranks"]:
        _only(rank, ops=list, waits=list)
        ops = {}
        for op in rank["ops"]:
            _only(op, kind=str, label=int, nbytes=int, peer=int, tag=int, cpu=int, nic=int, offset=int, how=str)
            _need(op["kind"] in ("send", "recv") and op["how"] in ("add", "copy"), "an operation")
            _need(op["label"] not in ops, "a label twice")
            ops[op["label"]] = {**op, "send": op["kind"] == "send", "add": op["how"] == "add", "waits": []}
        for wait in rank["waits"]:
            _only(wait, **{"who": int, "for": int})
            _need(wait["who"] in ops and wait["for"] in ops, "a wait")
            ops[wait["who"]]["waits"].append(wait["for"])
        ranks.append(ops)
    _judge_messages(ranks, nbytes, rng)


def judge_chakra(tree: Tree, nbytes: int, rng: random.Random) -> None:
    """The trees of all ranks' Chakra traces."""
    _only(tree, ranks=list)
    fields = {"is_cpu_op": 27, "comm_size": 9, "comm_dst": 7, "comm_src": 7, "comm_tag": 7, "optcc_offset": 9}
    fields |= {"optcc_reduce": 27, "optcc_port": 7}
    ranks = []
    for rank in tree["ranks"]:
        _only(rank, head=str, nodes=list)
        ops: dict[Any, Any] = {}
        for node in rank["nodes"]:
            _only(node, id=int, name=str, type=int, ctrl=list, data=list, attrs=list)
            attrs = {}
            for attr in node["attrs"]:
                _only(attr, name=str, field=int, value=int)
                _need(attr["name"] not in attrs, "an attribute twice")
                _need(attr["field"] in (7, 9) if fields.get(attr["name"]) in (7, 9) else fields.get(attr["name"]) == 27
                      and attr["field"] == 27, "an attribute")  # fmt: skip
                attrs[attr["name"]] = attr["value"]
            send = node["type"] == 5
            _need(node["type"] in (5, 6) and not attrs.get("is_cpu_op", 1) and node["id"] not in ops, "a node")
            names = ("comm_dst" if send else "comm_src", "comm_tag", "comm_size", "optcc_offset", "optcc_reduce")
            _need(all(name in attrs for name in names), "what a node moves")
            peer, tag, size, offset, add = (attrs[name] for name in names)
            waits = [*node["ctrl"], *node["data"]]
            ops[node["id"]] = {"send": send, "peer": peer, "tag": tag, "nbytes": size, "offset": offset,
                               "add": bool(add), "waits": waits}  # fmt: skip
        ranks.append(ops)
    _judge_messages(ranks, nbytes, rng)


def judge_transfers(plan: Tree, rng: random.Random) -> None:
    """The rows of a plan's columns: each is sent when the rows it waits for have landed."""
    columns = plan["columns"]
    ranks: list[dict[Any, Any]] = [{} for _ in columns["rank_name"]]
    for row, route in enumerate(columns["route"]):
        waits = columns["dep_idx"][columns["dep_ptr"][row] : columns["dep_ptr"][row + 1]]
        src, dst = columns["route_src"][route], columns["route_dst"][route]
        for send in (True, False):
            me, peer = (src, dst) if send else (dst, src)
            ranks[me][row, send] = {
                "send": send, "peer": peer, "tag": row, "nbytes": columns["length"][row],
                "offset": columns["offset"][row], "add": bool(columns["reduce"][row]),
                "waits": [(dep, False) for dep in waits] if send else [],
            }  # fmt: skip
    _judge_messages(ranks, plan["header"]["nbytes"], rng)


def _judge_messages(ranks: list[dict[Any, Any]], nbytes: int, rng: random.Random) -> None:
    numbers = np.random.default_rng(rng.getrandbits(32)).integers(0, 2**40, (len(ranks), nbytes))
    memory, done, flying = numbers.copy(), set[Any](), {}
    ends: dict[Any, list[tuple[int, Any]]] = defaultdict(list)
    actors = _Actors(rng)
    for r, ops in enumerate(ranks):
        for label, op in ops.items():
            _need(0 <= op["peer"] < len(ranks) and op["peer"] != r, "a peer", WrongError)
            _need(0 <= op["offset"] < op["offset"] + op["nbytes"] <= nbytes, "bytes", WrongError)
            line = (r, op["peer"], op["tag"]) if op["send"] else (op["peer"], r, op["tag"])
            ends[line, op["send"]].append((r, label))
            actors.add((r, label), lambda r=r, label=label, op=op, line=line: step(r, label, op, line))

    def step(r: int, label: Any, op: dict[str, Any], line: tuple[int, int, Any]) -> bool | None:
        if any((r, other) not in done for other in op["waits"]):
            return False
        span = slice(op["offset"], op["offset"] + op["nbytes"])
        if op["send"]:
            flying[line] = memory[r, span].copy()
        elif line not in flying:
            return False
        elif op["add"]:
            memory[r, span] += flying[line]
        else:
            memory[r, span] = flying[line]
        done.add((r, label))
        return None

    for (line, send), mine in ends.items():
        others = ends.get((line, not send), [])
        _need(len(mine) == len(others) == 1, "a loose end", WrongError)
        a, b = (ranks[who][label] for who, label in (mine[0], others[0]))
        _need([a[k] for k in ("nbytes", "offset", "add")] == [b[k] for k in ("nbytes", "offset", "add")], "ends differ",
              WrongError)  # fmt: skip
    actors.run()
    _need(len(done) == sum(map(len, ranks)), "some wait for ever", WrongError)
    _need(bool((memory == numbers.sum(axis=0)).all()), "a wrong sum", WrongError)


# ---- MSCCL++ --------------------------------------------------------------------------------------------------------

LAUNCHES = 3


def judge_mscclpp(tree: Tree, rng: random.Random) -> None:
    """An execution plan, launched three times in a row, by the executor's source (execution_plan.cc, _kernel.hpp)."""
    _Executor(_checked(tree), rng).run()


def _checked(tree: Tree) -> Tree:
    _only(tree, name=str, collective=str, protocol=str, inplace=bool, gpus=list, reuse_resources=[bool],
          num_threads_per_block=[int], use_double_scratch_buffer=[bool], buffer_alignment=[int],
          min_message_size=[int], max_message_size=[int])  # fmt: skip
    plain = {"collective": "allreduce", "protocol": "Simple", "inplace": True}
    _need(all(tree[name] == value for name, value in plain.items()), "another kind of plan")
    _need(not tree.get("reuse_resources") and not tree.get("use_double_scratch_buffer"), "scratch")
    _need(tree.get("buffer_alignment", 16) == 16 and tree["gpus"], "alignment")
    for r, gpu in enumerate(tree["gpus"]):
        _only(gpu, id=int, input_chunks=int, output_chunks=int, scratch_chunks=int, threadblocks=list, channels=list,
              remote_buffers=list, semaphores=[list])  # fmt: skip
        _need(gpu["id"] == r and not gpu.get("semaphores"), "a GPU")
        _need(gpu["input_chunks"] == gpu["output_chunks"] == tree["gpus"][0]["input_chunks"] > 0, "chunks")
        for each in gpu["channels"]:
            _only(each, channel_type=str, connected_to=list)
        for each in gpu["remote_buffers"]:
            _only(each, rank=int, type=str, access_channel_types=list)
        for t, block in enumerate(gpu["threadblocks"]):
            _only(block, id=int, ops=list, channels=list, remote_buffer_refs=[list])
            _need(block["id"] == t, "a threadblock")
            for op in block["ops"]:
                _only(op, name=str, channel_type=[str], channel_ids=[list], src_buff=[list], dst_buff=[list],
                      reduce_op=[str], tbg_info=[dict])  # fmt: skip
                _need(op["name"] in ("nop", "wait", "signal", "flush", "put", "pws", "copy", "re"), op["name"])
                _need(op.get("reduce_op", "sum") == "sum", "a sum")
                _only(op.get("tbg_info", {"tb_id": 0, "tbg_size": 1}), tb_id=int, tbg_size=int)
                for span in (*op.get("src_buff", ()), *op.get("dst_buff", ())):
                    _only(span, index=int, size=int, type=[str], buffer_id=[int])
    return tree


class _Executor:
    def __init__(self, tree: Tree, rng: random.Random) -> None:
        self.gpus, self.actors, self.rng = tree["gpus"], _Actors(rng), rng
        ops = [op for gpu in self.gpus for block in gpu["threadblocks"] for op in block["ops"]]
        self.parts = lcm(*(op.get("tbg_info", {"tbg_size": 1})["tbg_size"] for op in ops))
        _need(0 < self.parts < 1000, "groups")
        size = self.gpus[0]["input_chunks"] * self.parts
        draws = np.random.default_rng(rng.getrandbits(32))
        self.given = draws.integers(0, 2**40, (LAUNCHES, len(self.gpus), size))
        self.memory: dict[tuple[int, str], NDArray[np.int64]] = {}
        self.peers: dict[tuple[int, str], list[int]] = {}
        self.signals: dict[Any, int] = defaultdict(int)
        self.queue: dict[Any, list[Callable[[], None]]] = defaultdict(list)
        self.at: dict[Any, int] = {}
        self.launch = [-1] * len(self.gpus)
        for r, gpu in enumerate(self.gpus):
            self.memory[r, "i"] = np.zeros(size, np.int64)
            self.memory[r, "s"] = np.full(gpu["scratch_chunks"] * self.parts, 12345678901, np.int64)
            for kind in ("memory", "port"):
                mine = [each["connected_to"] for each in gpu["channels"] if each["channel_type"] == kind]
                self.peers[r, kind] = [peer for one in mine for peer in one]
            self.actors.add(("caller", r), lambda r=r: self._call(r))
            for t in range(len(gpu["threadblocks"])):
                for bulk in (False, True):
                    self.at[r, t, bulk] = len(gpu["threadblocks"][t]["ops"])
                    self.actors.add((r, t, bulk), lambda r=r, t=t, bulk=bulk: self._step(r, t, bulk))
            for c in range(len(self.peers[r, "port"])):
                self.actors.add(("proxy", r, c), lambda r=r, c=c: self._proxy(r, c))

    def run(self) -> None:
        """All launches of all ranks."""
        self.actors.run()
        _need(all(number == LAUNCHES for number in self.launch), "some wait for ever", WrongError)

    def _call(self, r: int) -> bool:
        """The caller looks at the result when the kernel is over, and launches it again with new data."""
        blocks = self.gpus[r]["threadblocks"]
        if self.launch[r] == LAUNCHES:
            return False
        if any(self.at[r, t, bulk] < len(block["ops"]) for t, block in enumerate(blocks) for bulk in (False, True)):
            return False
        if self.launch[r] >= 0:
            right = self.given[self.launch[r]].sum(axis=0)
            _need(bool((self.memory[r, "i"] == right).all()), "a wrong sum", WrongError)
        self.launch[r] += 1
        if self.launch[r] < LAUNCHES:
            self.memory[r, "i"][:] = self.given[self.launch[r], r]
            self.at |= {(r, t, bulk): 0 for t in range(len(blocks)) for bulk in (False, True)}
        return True

    def _proxy(self, r: int, c: int) -> bool:
        if not self.queue[r, c]:
            return False
        self.queue[r, c].pop(0)()
        return True

    def _step(self, r: int, t: int, bulk: bool) -> bool:
        """The next operation of a threadblock's first threads, or of all of its threads."""
        ops = self.gpus[r]["threadblocks"][t]["ops"]
        if (at := self.at[r, t, bulk]) == len(ops):
            return False
        op = ops[at]
        kind = op.get("channel_type")
        if op["name"] == "nop":
            if self.at[r, t, not bulk] != at:
                return False
            self.at[r, t, not bulk] += 1
        elif bulk == (op["name"] in ("copy", "re") or (op["name"] in ("put", "pws") and kind == "memory")):
            if bulk:
                self._move(r, t, op)
            elif not self._lead(r, t, op):
                return False
        self.at[r, t, bulk] += 1
        return True

    def _channel(self, r: int, t: int, op: Tree, which: int) -> tuple[int, str, int]:
        kind = op.get("channel_type")
        _need(kind in ("memory", "port"), "a channel type")
        block = self.gpus[r]["threadblocks"][t]
        mine = [c for each in block["channels"] if each["channel_type"] == kind for c in each["channel_ids"]]
        _need(which < len(op.get("channel_ids", ())) and op["channel_ids"][which] < len(mine), "a channel", WrongError)
        c = mine[op["channel_ids"][which]]
        _need(c < len(self.peers[r, kind]), "a channel", WrongError)
        return r, kind, c

    def _lead(self, r: int, t: int, op: Tree) -> bool:
        if op["name"] == "flush":
            _need(op.get("channel_type") == "port", "a flush of memory channels")
            return not any(self.queue[self._channel(r, t, op, n)[::2]] for n in range(len(op.get("dst_buff", ()))))
        lines = [self._channel(r, t, op, n) for n in range(len(op.get("channel_ids", ())))]
        if op["name"] == "wait":
            counts = {line: lines.count(line) for line in lines}
            if any(self.signals[line] < count for line, count in counts.items()):
                return False
            for line in lines:
                self.signals[line] -= 1
        elif op["name"] == "signal":
            for line in lines:
                self._signal(line)
        else:
            _need(len(lines) == 1, "a put of one channel", WrongError)
            line = lines[0]
            self.queue[line[::2]].append(lambda: self._move(r, t, op))
            if op["name"] == "pws":
                self._signal(line)
        return True

    def _signal(self, line: tuple[int, str, int]) -> None:
        r, kind, c = line
        peer = self.peers[r, kind][c]
        number = self.peers[r, kind][:c].count(peer)
        ends = [k for k, other in enumerate(self.peers.get((peer, kind), ())) if other == r]

        def arrive() -> None:
            if number < len(ends):
                self.signals[peer, kind, ends[number]] += 1

        if kind == "port":
            self.queue[r, c].append(arrive)
        else:
            arrive()

    def _span(self, r: int, t: int, op: Tree, span: Tree) -> tuple[int, NDArray[np.int64]]:
        """The rank, and the elements: a slice of a group's where the operation is divided."""
        _need(("type" in span) != ("buffer_id" in span), "a buffer")
        rank, kind = r, span.get("type")
        if "buffer_id" in span:
            by = op.get("channel_type")
            refs = self.gpus[r]["threadblocks"][t].get("remote_buffer_refs", [])
            ids = [n for ref in refs if ref["access_channel_type"] == by for n in ref["remote_buffer_ids"]]
            _need(span["buffer_id"] < len(ids), "a remote buffer", WrongError)
            _need(ids[span["buffer_id"]] < len(self.gpus[r]["remote_buffers"]), "a remote buffer", WrongError)
            buffer = self.gpus[r]["remote_buffers"][ids[span["buffer_id"]]]
            _need(by in buffer["access_channel_types"], "an access", WrongError)
            rank, kind = buffer["rank"], buffer["type"]
        _need(kind in ("i", "o", "s"), "a kind of buffer")
        memory = self.memory.get((rank, "i" if kind == "o" else kind))
        _need(memory is not None, "a rank", WrongError)
        assert memory is not None
        part = op.get("tbg_info", {"tb_id": 0, "tbg_size": 1})
        _need(0 <= part["tb_id"] < part["tbg_size"], "a part of a group")
        count = span["size"] * self.parts
        each, rest = divmod(count, part["tbg_size"])
        cuts = [n * each + min(n, rest) for n in (part["tb_id"], part["tb_id"] + 1)]
        start = span["index"] * self.parts
        _need(count > 0 and start >= 0 and start + count <= len(memory), "chunks", WrongError)
        return rank, memory[start + cuts[0] : start + cuts[1]]

    def _move(self, r: int, t: int, op: Tree) -> None:
        spans = [self._span(r, t, op, span) for span in (*op.get("src_buff", ()), *op.get("dst_buff", ()))]
        _need(len(op.get("dst_buff", ())) == 1 and len(spans) == 2 + (op["name"] == "re"), "buffers", WrongError)
        remote = "buffer_id" in op["dst_buff"][0]
        _need(remote == (op["name"] in ("put", "pws")), "a buffer", WrongError)
        _need(not any("buffer_id" in span for span in op["src_buff"]), "a buffer", WrongError)
        *sources, (rank, target) = spans
        _need(all(len(source) == len(target) for _, source in sources), "sizes", WrongError)
        if remote:
            line = self._channel(r, t, op, 0)
            _need(self.peers[r, line[1]][line[2]] == rank, "another rank", WrongError)
        target[:] = sum((source for _, source in sources), np.zeros(len(target), np.int64))
