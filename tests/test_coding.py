"""Every step of proof id coding, on protocols of all kinds; and that each step can be seen to fail."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import exp, log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optcc.errors import InputError
from optcc.theory.protocols import (
    Execution,
    Group,
    Labels,
    Message,
    Sent,
    entropy,
    gather_and_spread,
    joint,
    lacks,
    news,
    random_chatter,
    random_protocol,
    run,
    slacks,
    start,
)
from optcc.theory.protocols import given as left
from tests.effort import examples

ROUNDING = 1e-9  # logarithms of whole numbers up to some thousands, a few hundred of them added up
CASES = [
    ((2,), 2),
    ((8,), 2),
    ((2, 4), 2),
    ((2,), 3),
    ((5,), 3),
    ((6,), 3),
    ((2, 2), 3),
    ((4,), 4),
    ((3,), 4),
    ((2,), 5),
]
seeds = st.integers(0, 2**32 - 1)


def drawn(moduli: tuple[int, ...], ranks: int, seed: int) -> Execution:
    rng = np.random.default_rng(seed)
    return random_protocol(Group(moduli), ranks, int(rng.integers(2 * ranks)), rng)


@examples(200)
@given(case=st.sampled_from(CASES), seed=seeds)
def test_every_step_holds_on_random_protocols(case: tuple[tuple[int, ...], int], seed: int) -> None:
    tried = drawn(*case, seed)
    assert tried.ignorance() == pytest.approx(0, abs=ROUNDING)
    assert {step: slack for step, slack in slacks(tried).items() if slack < -ROUNDING} == {}


@pytest.mark.parametrize("case", CASES)
def test_gathering_and_spreading_leaves_no_slack(case: tuple[tuple[int, ...], int]) -> None:
    group, ranks = Group(case[0]), case[1]
    tried = gather_and_spread(group, ranks)
    assert tried.ignorance() == pytest.approx(0, abs=ROUNDING)
    assert list(slacks(tried).values()) == pytest.approx([0] * 6, abs=ROUNDING)
    # Beside the sum, the inputs on their way up are news, the sum on its way down is not.
    beside = [m.beside_sum for m in news(tried)]
    assert beside == pytest.approx([group.bits * (i < ranks - 1) for i in range(2 * (ranks - 1))])


def test_the_random_protocols_are_of_all_kinds() -> None:
    """Some send little more than they must, some much; most send what no linear code does: H(m) is not whole."""
    spare, odd = [], 0
    for seed in range(12):
        tried = drawn((2, 2), 3, seed)
        spare.append(slacks(tried)["6 total"])
        odd += any(abs(p.entropy - round(p.entropy)) > 0.01 for p in news(tried))
    assert min(spare) < 2 < 4 < max(spare)
    assert odd > 6


@pytest.mark.parametrize("blocks", [[[0, 1], [2], [3]], [[3, 0], [1, 2]], [[2], [1, 3, 0]], [[0], [1], [2], [3]]])
def test_every_step_holds_between_blocks(blocks: list[list[int]]) -> None:
    """All inputs of a block but one are fixed, and the block is one rank."""
    for seed in range(3):
        whole = drawn((3,), 4, seed)
        fixed = {rank: (rank + seed) % 3 for members in blocks for rank in members[1:]}
        merged = (whole.fixing(fixed) if fixed else whole).between(blocks)
        assert merged.ranks == len(blocks)
        assert {step: slack for step, slack in slacks(merged).items() if slack < -ROUNDING} == {}
        crossing = {rank: block for block, members in enumerate(blocks) for rank in members}
        sent = sum(entropy(m.content) for m in whole.sent if crossing[m.sender] != crossing[m.receiver])
        assert sent >= merged.bits() - ROUNDING  # with all inputs free no less passes


def test_inside_a_block_nothing_is_counted() -> None:
    """The same without its blocks would be too much: what passes between blocks may be below 2(P-1) n."""
    group = Group((3,))
    whole = gather_and_spread(group, 4)
    merged = whole.fixing({1: 0, 2: 1}).between([[0, 1, 2], [3]])
    assert merged.bits() == pytest.approx(2 * group.bits)
    assert merged.bits() < whole.bits() == pytest.approx(6 * group.bits)


@examples(100)
@given(case=st.sampled_from(CASES), seed=seeds)
def test_a_sum_known_in_part_takes_in_part_as_much(case: tuple[tuple[int, ...], int], seed: int) -> None:
    """At least 2(P-1) n - (2P-1) e n, with e n the most that a rank lacks of the sum."""
    group, ranks = Group(case[0]), case[1]
    rng = np.random.default_rng(seed)
    whole = random_protocol(group, ranks, 2, rng)
    blurred = replace(whole, sent=tuple(replace(m, content=np.minimum(m.content, group.order - 2)) for m in whole.sent))
    for tried in (random_chatter(start(group, ranks), 4 * ranks, rng), blurred):
        least = 2 * (ranks - 1) * group.bits - (2 * ranks - 1) * tried.ignorance()
        assert tried.bits() >= least - ROUNDING


def test_the_part_that_is_lacking_counts() -> None:
    """A sum of eight values, two of which nobody tells apart, takes less than the bound for the whole sum."""
    group = Group((8,))
    up = [Message(rank, 0, lambda view: view[0]) for rank in (1, 2)]
    down = [Message(0, rank, lambda view: min(sum(view) % 8, 6)) for rank in (1, 2)]
    tried = run(group, 3, up + down)
    assert tried.ignorance() == pytest.approx(1 / 4)
    assert tried.bits() == pytest.approx(11.5)  # 12 for the whole sum; the theorem says no less than 12 - 5/4


def streams(slots: int, rate: int, least: int, others: int) -> int:
    """All that can pass a port in so many slots: bursts of `least` bits or more, `rate` bits a slot, in whole slots,
    each to or from one of `others`; counted one by one."""

    def rest(slot: int) -> int:
        if slot == slots:
            return 1
        lengths = range(-(-least // rate), slots - slot + 1)
        return rest(slot + 1) + sum(others * 2 ** (rate * length) * rest(slot + length) for length in lengths)

    return rest(0)


@pytest.mark.parametrize("rate", [1, 2, 3])
@pytest.mark.parametrize("least", [3, 4, 6])
@pytest.mark.parametrize("ranks", [2, 4, 9])
def test_what_a_port_can_say_by_when(rate: int, least: int, ranks: int) -> None:
    for slots in (6, 9, 12):
        told, bits = log2(streams(slots, rate, least, ranks - 1)), rate * slots
        x = (2 * log2(exp(1) * least / rate) + log2(ranks - 1)) / least
        assert told <= bits * (1 + x)
        assert told > bits or ranks == 2, "more than the bits alone, or there would be nothing to bound"


def test_timing_is_worth_a_thousandth_on_real_links() -> None:
    s, rate, tau, ranks = 4096 * 8, 400e9, 1e-12, 128
    for destinations, worth in ((1, 0.0013), (2, 0.0015)):
        x = (2 * log2(exp(1) * s / (rate * tau)) + destinations * log2(ranks - 1)) / s
        assert x == pytest.approx(worth, abs=5e-5)


def failing(tried: Execution) -> set[str]:
    return {step[0] for step, slack in slacks(tried).items() if slack < -0.01}


def told(begun: Execution, sender: int, receiver: int, content: Labels) -> Execution:
    """A message whose content is given, whatever the sender knows."""
    return replace(begun, sent=(*begun.sent, Sent(sender, receiver, content)))


def test_a_protocol_without_the_sum_is_noticed() -> None:
    group = Group((2, 2))
    whole = gather_and_spread(group, 4)
    assert failing(start(group, 4)) == {"2", "4", "6"}
    # The last rank does not get the sum: what all read in the transcript tells it, but it did not receive it.
    assert failing(replace(whole, sent=whole.sent[:-1])) == {"3", "4", "6"}
    # Nobody says what rank 0 has: the transcript leaves the sum unknown.
    assert failing(replace(whole, sent=whole.sent[:3])) == {"2", "4", "6"}
    chatter = random_chatter(start(group, 4), 6, np.random.default_rng(1))
    assert chatter.ignorance() > 1
    assert {"2", "3", "4"} <= failing(chatter)


def test_a_message_from_nowhere_is_noticed() -> None:
    """An oracle that tells everybody the sum needs P n only; it says what its sender does not know."""
    oracle = start(Group((3,)), 4)
    for rank in range(4):
        oracle = told(oracle, (rank + 1) % 4, rank, oracle.total)
    assert oracle.ignorance() == 0
    assert oracle.bits() == pytest.approx(4 * oracle.group.bits)
    assert failing(oracle) >= {"1", "6"}
    # Whether a message comes from nowhere shows in its slack alone, too.
    secret = gather_and_spread(Group((2,)), 3)
    assert failing(told(secret, 0, 1, secret.inputs[:, 1] ^ secret.inputs[:, 2])) == set()  # rank 0 knows that
    begun = start(Group((2,)), 3)
    assert "1" in failing(told(begun, 0, 1, begun.inputs[:, 1] ^ begun.inputs[:, 2]))


def test_dependent_inputs_are_noticed() -> None:
    """Were rank 1's input always that of rank 0, it could be left out, and less would be sent."""
    whole = gather_and_spread(Group((3,)), 3)
    alike = whole.inputs[:, 0] == whole.inputs[:, 1]
    tried = replace(
        whole, inputs=whole.inputs[alike], sent=tuple(replace(m, content=m.content[alike]) for m in whole.sent[1:])
    )
    assert tried.ignorance() == 0
    assert {"1", "5", "6"} <= failing(tried)


def test_news_to_fewer_ranks_would_not_do() -> None:
    """With four ranks a message may be news to two of them, each time as much as beside the sum; never to three."""
    tried = gather_and_spread(Group((3,)), 4)
    told = [sum(h > ROUNDING for h in m.to_ranks) for m in news(tried)]
    assert max(told) == 2
    assert sum(lacks(tried)) == pytest.approx(2 * left(joint(*tried.inputs.T), tried.total))
    first = news(tried)[0]
    assert [h for h in first.to_ranks if h > ROUNDING] == pytest.approx([first.beside_sum] * 2)


def test_entropies_are_those_of_the_counts() -> None:
    assert entropy(np.array([7, 7, -1, 3])) == pytest.approx(1.5)
    assert entropy(np.array([5, 5])) == 0
    assert joint(np.array([9, 9, 1]), np.array([0, 4, 0])).tolist() == [1, 2, 0]
    # A run's variables, against the definition.
    tried = drawn((3,), 3, 5)
    content = tried.sent[-1].content
    shares = [float(np.mean(content == value)) for value in set(content.tolist())]
    assert entropy(content) == pytest.approx(-sum(p * np.log2(p) for p in shares))


def test_sums_are_those_of_the_group() -> None:
    group = Group((2, 3))
    pairs = [(a, b) for b, a in product(range(3), range(2))]  # an element's number is a + 2 b
    for one, other in product(range(6), repeat=2):
        (a, b), (c, d) = pairs[one], pairs[other]
        assert pairs[int(group.sum(np.array([[one, other]]))[0])] == ((a + c) % 2, (b + d) % 3)


def test_what_is_no_protocol_is_refused() -> None:
    begun = start(Group((2,)), 3)
    for sender, receiver in ((0, 0), (0, 3), (-1, 0)):
        with pytest.raises(InputError, match="no such way"):
            begun.then(Message(sender, receiver, lambda view: view[0]))
    with pytest.raises(InputError, match="too many inputs"):
        start(Group((2,)), 17)
    with pytest.raises(InputError, match="no partition"):
        begun.between([[0], [1]])
    with pytest.raises(InputError, match="more than one input"):
        begun.between([[0], [1, 2]])
