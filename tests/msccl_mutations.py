"""MSCCL algorithms, parsed from XML, with a planted fault each."""

from __future__ import annotations

import copy
from collections.abc import Callable

from lxml import etree

Xml = etree._Element


def _steps(algo: Xml, *kinds: str) -> list[Xml]:
    return [step for step in algo.iter("step") if step.get("type") in kinds]


def _set(step: Xml, **values: object) -> None:
    for name, value in values.items():
        step.set(name, str(value))


def _number_again(block: Xml) -> None:
    for i, step in enumerate(block):
        step.set("s", str(i))


def _dependent(algo: Xml) -> Xml:
    return next(step for step in algo.iter("step") if step.get("depid") != "-1")


def no_hasdep(algo: Xml) -> None:
    for step in algo.iter("step"):
        step.set("hasdep", "0")


def no_dependence(algo: Xml) -> None:
    for step in algo.iter("step"):
        _set(step, depid=-1, deps=-1)


def one_dependence_less(algo: Xml) -> None:
    _set(_dependent(algo), depid=-1, deps=-1)


def receive_without_adding(algo: Xml) -> None:
    _steps(algo, "rrc")[0].set("type", "r")


def add_what_is_finished(algo: Xml) -> None:
    _steps(algo, "r")[0].set("type", "rrc")


def send_other_chunks(algo: Xml) -> None:
    one = _steps(algo, "s")[0]
    other = next(
        s for s in _steps(algo, "s") if s.get("srcoff") != one.get("srcoff") and s.get("cnt") == one.get("cnt")
    )
    one.set("srcoff", str(other.get("srcoff")))


def receive_elsewhere(algo: Xml) -> None:
    step = next(s for s in _steps(algo, "r") if s.get("dstoff") != "0")
    step.set("dstoff", str(int(str(step.get("dstoff"))) - 1))


def receive_outside(algo: Xml) -> None:
    _steps(algo, "r")[0].set("dstoff", "100000")


def _drop(step: Xml) -> None:
    """Without a step that nobody waits for by number, or with all waits moved along."""
    block = step.getparent()
    at, tb = int(str(step.get("s"))), str(block.get("id"))
    block.remove(step)
    _number_again(block)
    for other in block.getparent().iter("step"):
        if other.get("depid") == tb and int(str(other.get("deps"))) > at:
            other.set("deps", str(int(str(other.get("deps"))) - 1))


def drop_send(algo: Xml) -> None:
    _drop(_steps(algo, "s")[-1])


def drop_receive(algo: Xml) -> None:
    _drop(_steps(algo, "r")[-1])


def send_more(algo: Xml) -> None:
    step = _steps(algo, "s")[0]
    step.set("cnt", str(int(str(step.get("cnt"))) + 1))


def turn_round(algo: Xml) -> None:
    """Every threadblock does its steps from last to first."""
    for block in algo.iter("tb"):
        block[:] = list(block)[::-1]
        _number_again(block)


def receive_first(algo: Xml) -> None:
    """Every threadblock receives before it sends."""
    for block in algo.iter("tb"):
        block[:] = sorted(block, key=lambda step: step.get("type") == "s")
        _number_again(block)
        for step in block:
            _set(step, depid=-1, deps=-1)


def other_channel(algo: Xml) -> None:
    next(b for b in algo.iter("tb") if b.get("send") != "-1").set("chan", "0" if algo.get("nchannels") == "1" else "1")
    next(iter(algo.iter("tb"))).set("chan", str(int(str(algo.get("nchannels"))) - 1 or 7))


def other_receiver(algo: Xml) -> None:
    block = next(b for b in algo.iter("tb") if b.get("send") != "-1")
    gpu = str(block.getparent().get("id"))
    block.set("send", next(str(r) for r in range(9) if str(r) not in (gpu, block.get("send"))))


def wait_for_oneself(algo: Xml) -> None:
    """The first send waits for the last step of its own threadblock."""
    step = next(s for s in _steps(algo, "s") if len(s.getparent()) > int(str(s.get("s"))) + 1)
    block = step.getparent()
    _set(step, depid=block.get("id"), deps=len(block) - 1)
    block[-1].set("hasdep", "1")


def wait_for_nobody(algo: Xml) -> None:
    _set(_steps(algo, "s")[0], depid=0, deps=900)


def lonely_nop(algo: Xml) -> None:
    block = next(iter(algo.iter("tb")))
    etree.SubElement(
        block, "step", s=str(len(block)), type="nop", srcbuf="i", srcoff="0", dstbuf="i", dstoff="0", cnt="0",
        depid="-1", deps="-1", hasdep="0",
    )  # fmt: skip


def chain_without_end(algo: Xml) -> None:
    """A nop's dependence, and behind it a step that has none of its own."""
    step = next(s for s in algo.iter("step") if s.get("depid") == "-1" and len(s.getparent().getparent()) > 1)
    block = step.getparent()
    nop = copy.deepcopy(step)
    other = next(b for b in block.getparent() if b is not block)
    _set(nop, type="nop", cnt=0, depid=other.get("id"), deps=0, hasdep=0)
    block.insert(block.index(step), nop)
    _number_again(block)


MSCCL: dict[str, tuple[Callable[[Xml], None], str]] = {
    "nobody sets a flag": (no_hasdep, "deadlock"),
    "nobody waits": (no_dependence, "race"),
    "one does not wait": (one_dependence_less, "race"),
    "received and not added": (receive_without_adding, "missing"),
    "added what is finished": (add_what_is_finished, "second time"),
    "other chunks sent": (send_other_chunks, "to chunk|race"),
    "received into the chunk before": (receive_elsewhere, "race|missing|other chunks"),
    "received outside the buffer": (receive_outside, "outside|missing"),
    "a send is missing": (drop_send, "deadlock"),
    "a receive is missing": (drop_receive, "deadlock|nobody receives|expects|race"),
    "more sent than received": (send_more, "expects|outside"),
    "steps from last to first": (turn_round, "deadlock|expects|race|missing|second time"),
    "receives before sends": (receive_first, "deadlock|race"),
    "a threadblock on another channel": (other_channel, "deadlock|shares|expects|at the other end of"),
    "sent to another GPU": (other_receiver, "deadlock|shares|peer|expects"),
    "a step waits for a later one": (wait_for_oneself, "deadlock"),
    "a step waits for none that exists": (wait_for_nobody, "not there"),
    "a nop with nothing behind it": (lonely_nop, "no step behind it"),
    "a nop before a step that waits for nobody": (chain_without_end, "the parser refuses"),
}
