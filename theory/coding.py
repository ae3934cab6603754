"""Why every AllReduce of a sum sends 2(P-1) n, coded or not: the count, message by message, on a protocol's run.

The steps are those of proof id coding. Message m goes from rank k to rank j; V is what j has before, Pi all messages
before, Y the sum, and S_i the sum without rank i's input. Everything is in bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optcc.theory.protocols import Execution, Labels, entropy, joint


@dataclass(frozen=True)
class Payment:
    """What one message pays for.

    entropy : H(m)
    unknown : H(m | V), what the receiver does not know of it; the sum of the next two
    result : I(m; Y | V), what it tells the receiver of the sum
    beyond : H(m | V, Y), what it tells the receiver besides
    fresh : H(m | Pi), what it tells an observer who reads all messages
    shared : I(m; S_j | Pi), what of that is about the sum of all but the receiver's input
    fall : by how much it lowers the potential, the sum over i of H(S_i | Pi), less (P-2) H(Y | Pi)
    """

    sender: int
    receiver: int
    entropy: float
    unknown: float
    result: float
    beyond: float
    fresh: float
    shared: float
    fall: float


def payments(run: Execution) -> list[Payment]:
    """What each message of the run pays for, in order. Source: proof id coding."""
    rests = _rests(run)
    views = [run.inputs[:, rank] for rank in range(run.ranks)]
    transcript = np.zeros(len(run.inputs), np.int64)
    before = potential(run, transcript)
    found = []
    for message in run.sent:
        j, m = message.receiver, message.content
        after = joint(transcript, m)
        beyond = given(m, views[j], run.total)
        unknown = given(m, views[j])
        fresh = given(m, transcript)
        now = potential(run, after)
        found.append(
            Payment(
                sender=message.sender,
                receiver=j,
                entropy=entropy(m),
                unknown=unknown,
                result=unknown - beyond,
                beyond=beyond,
                fresh=fresh,
                shared=fresh - given(m, transcript, rests[j]),
                fall=before - now,
            )
        )
        views[j], transcript, before = joint(views[j], m), after, now
    return found


def potential(run: Execution, transcript: Labels) -> float:
    """The sum over i of H(S_i | transcript), less (P-2) H(Y | transcript), bits.

    It is 2n at first and 0 once the transcript tells everything. Source: step 5 of proof id coding.
    """
    return sum(given(rest, transcript) for rest in _rests(run)) - (run.ranks - 2) * given(run.total, transcript)


def slacks(run: Execution) -> dict[str, float]:
    """Of each step of proof id coding by how many bits it holds: none is negative where every rank learns the sum.

    Where a step says that two numbers are equal, minus their difference.
    """
    n, ranks = run.group.bits, run.ranks
    paid = payments(run)
    into = [[p.result for p in paid if p.receiver == rank] for rank in range(ranks)]
    start = potential(run, np.zeros(len(run.inputs), np.int64))
    return {
        "1 product sets": -_dependence(run),
        "2 result": -max(abs(sum(told) - n) for told in into),
        "3 beyond the result": min((p.beyond - (p.fresh - p.shared) for p in paid), default=0.0),
        "4 transcript": -abs(sum(p.fresh for p in paid) - ranks * n),
        "5 potential pays": min((p.fall - p.shared for p in paid), default=0.0),
        "5 potential ends": -max(abs(start - 2 * n), abs(sum(p.fall for p in paid) - 2 * n)),
        "6 total": run.bits() - 2 * (ranks - 1) * n,
    }


def given(variable: Labels, *known: Labels) -> float:
    """H(variable | known), bits."""
    return entropy(variable, *known) - entropy(*known)


def _rests(run: Execution) -> list[Labels]:
    """For each rank the sum of all inputs but its own."""
    return [run.group.sum(np.delete(run.inputs, rank, axis=1)) for rank in range(run.ranks)]


def _dependence(run: Execution) -> float:
    """The most, over all moments, by which inputs depend on each other, or a message on another than its sender's.

    Both given what was sent before, in bits.
    """
    transcript = np.zeros(len(run.inputs), np.int64)
    inputs = list(run.inputs.T)
    worst = 0.0
    for message in run.sent:
        worst = max(worst, given(message.content, transcript, inputs[message.sender]))
        transcript = joint(transcript, message.content)
        worst = max(worst, sum(given(x, transcript) for x in inputs) - given(joint(*inputs), transcript))
    return worst
