"""Chakra traces, the nodes of every rank, with a planted fault each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from optcc.export.nodes import Node

Files = list[list[Node]]


def _change(
    files: Files, sends: bool, which: int = 0, needs: Callable[[Node], bool] = lambda node: True, **values: object
) -> Node:
    """Change fields of the which-th such node; returns the old one."""
    places = [(r, i) for r, nodes in enumerate(files) for i, n in enumerate(nodes) if n.sends == sends and needs(n)]
    rank, i = places[which]
    old = files[rank][i]
    files[rank][i] = replace(old, **values)  # type: ignore[arg-type]
    return old


def _change_pair(files: Files, which: Callable[[Node], bool], **values: object) -> None:
    """Change both nodes of the first transfer whose send is such."""
    old = _change(files, True, needs=which, **values)
    _change(files, False, needs=lambda node: node.tag == old.tag, **values)


def _raw_send(node: Node) -> bool:
    return not node.deps


def _circle(files: Files) -> None:
    """A raw send waits for the finished bytes, which need it."""
    node = next(n for n in files[0] if n.sends and not n.deps)
    last = [n.id for n in files[0] if not n.sends and n.offset == node.offset][-1]
    files[0][node.id] = replace(node, deps=(*node.deps, last))


def _drop_last(files: Files, sends: bool) -> None:
    rank = next(r for r, nodes in enumerate(files) if nodes[-1].sends == sends)
    del files[rank][-1]


CHAKRA: dict[str, tuple[Callable[[Files], object], str]] = {
    "a send does not wait": (lambda f: _change(f, True, needs=lambda n: bool(n.deps), deps=()), "race"),
    "two nodes wait for each other": (_circle, "deadlock"),
    "a tag of its own on one side": (lambda f: _change(f, True, tag=10**6), "missing"),
    "a receive is missing": (lambda f: _drop_last(f, False), "receive is missing"),
    "a send is missing": (lambda f: _drop_last(f, True), "send is missing"),
    "a size that differs": (lambda f: _change(f, True, nbytes=8), "differ"),
    "another peer": (lambda f: _change(f, True, needs=lambda n: n.peer != 3, peer=3), "missing|its peer|twice"),
    "a wait for a node that is not there": (lambda f: _change(f, True, deps=(10**6,)), "not there"),
    "copied, not added": (lambda f: _change_pair(f, lambda n: n.reduce, reduce=False), "race|missing"),
    "added, not copied": (lambda f: _change_pair(f, lambda n: not n.reduce, reduce=True), "second time|race"),
    "other bytes": (
        lambda f: _change_pair(f, lambda n: n.offset > 0 and bool(n.deps), offset=0),
        "race|missing|second",
    ),
    "a raw send of nothing": (lambda f: _change_pair(f, _raw_send, nbytes=0), "no bytes"),
    "a node twice": (lambda f: f[0].append(f[0][0]), "numbered"),
}
