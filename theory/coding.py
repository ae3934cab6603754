"""Why every AllReduce of a sum sends 2(P-1) n, coded or not: the steps of the proof, in numbers, on a protocol's run.

The steps are those of proof id coding. m is a message; X is all inputs, V_i what rank i has in the end, Pi all messages
before m, and Y the sum. Everything is in bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optcc.theory.protocols import Execution, Labels, entropy, joint


@dataclass(frozen=True)
class News:
    """What one message says that was not known before.

    entropy : H(m)
    beside_sum : H(m | Y, Pi), the news to one who has the sum and what was sent before
    to_ranks : H(m | V_i, Pi) for each rank i, the news to a rank that has, besides, all that it has in the end
    """

    sender: int
    receiver: int
    entropy: float
    beside_sum: float
    to_ranks: tuple[float, ...]


def news(run: Execution) -> list[News]:
    """The news in each message of the run, in order. Source: step 3 of proof id coding."""
    views = [joint(*run.received(rank)) for rank in range(run.ranks)]
    transcript = np.zeros(len(run.inputs), np.int64)
    found = []
    for message in run.sent:
        m = message.content
        found.append(
            News(
                sender=message.sender,
                receiver=message.receiver,
                entropy=entropy(m),
                beside_sum=given(m, run.total, transcript),
                to_ranks=tuple(given(m, view, transcript) for view in views),
            )
        )
        transcript = joint(transcript, m)
    return found


def lacks(run: Execution) -> list[float]:
    """H(X | V_i) for each rank i: what it lacks of all inputs in the end."""
    inputs = joint(*run.inputs.T)
    return [given(inputs, *run.received(rank)) for rank in range(run.ranks)]


def slacks(run: Execution) -> dict[str, float]:
    """Of each step of proof id coding by how many bits it holds: none is negative where every rank learns the sum.

    Where a step says that two numbers are equal, minus their difference.
    """
    n, ranks = run.group.bits, run.ranks
    inputs, told, lack = joint(*run.inputs.T), news(run), lacks(run)
    beside_sum = given(inputs, run.total)
    transcript = joint(np.zeros(len(run.inputs), np.int64), *(message.content for message in run.sent))
    received = [sum(m.entropy for m in told if m.receiver == rank) for rank in range(ranks)]
    return {
        "1 product sets": -_dependence(run),
        "2 one case": -given(inputs, transcript),
        "3 news": min((_spare(m, rank) for m in told for rank in range(ranks)), default=0.0),
        "4 added up": (ranks - 2) * beside_sum - sum(lack),
        "5 in bits": min(
            -abs(beside_sum - (ranks - 1) * n),
            *(less - ((ranks - 1) * n - bits) for less, bits in zip(lack, received, strict=True)),
        ),
        "6 total": run.bits() - 2 * (ranks - 1) * n,
    }


def given(variable: Labels, *known: Labels) -> float:
    """H(variable | known), bits."""
    return entropy(variable, *known) - entropy(*known)


def _spare(message: News, rank: int) -> float:
    """By how much the news to a rank is less than step 3 allows: none to sender and receiver."""
    allowed = 0.0 if rank in (message.sender, message.receiver) else message.beside_sum
    return allowed - message.to_ranks[rank]


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
