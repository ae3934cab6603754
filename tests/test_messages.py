"""Messages over the native engine's flows: two ranks over virtual NICs that fail, from seeds; a liar; mutants.

``python -m tests.test_messages SEED ...`` plays seeds again; ``--sanitize`` with the compiler's sanitizers.
"""

from __future__ import annotations

import ctypes
import faulthandler
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from ctypes import byref, c_int32, c_uint64
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from tests.effort import cases
from tests.native_build import LOOSE, NATIVE, Mutant, build
from tests.native_replay import RESULTS, SANITIZERS, sanitized

pytestmark = pytest.mark.cc
PLAYER = Path(__file__).with_name("messages_player.c")
WRONG = ("wrong", "unexpected")
COUNTS = ("now_ns", "messages", "withdrawn", "too_long", "empty", "reused", "early")
FLOWS = ("segments", "resent", "duplicates", "refused", "left", "returned")


class Outcome(ctypes.Structure):
    """`struct outcome` of the player."""

    _fields_ = [
        *((name, c_uint64) for name in WRONG),
        ("unfinished", c_int32),
        ("padding", c_int32),
        *((name, c_uint64) for name in (*COUNTS, *FLOWS)),
    ]

    @property
    def fault(self) -> str:
        """What is wrong with a run; empty: nothing."""
        told = [f"{getattr(self, name)} {name}" for name in (*WRONG, "refused") if getattr(self, name)]
        return "; ".join(told + ([RESULTS[self.unfinished]] if self.unfinished else []))

    @property
    def told(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in (*WRONG, "unfinished", *COUNTS, *FLOWS)}


class Acknowledged(ctypes.Structure):
    """`struct acknowledged` of the player."""

    _fields_ = [(name, c_uint64) for name in ("frames", "by_messages", "latest_ns")]


def load(library: Path) -> Any:
    lib = ctypes.CDLL(str(library))
    lib.play_messages.argtypes = c_uint64, ctypes.POINTER(Outcome)
    lib.lie_in_messages.argtypes = c_uint64, c_uint64, ctypes.POINTER(c_uint64)
    lib.lie_in_messages.restype = c_uint64
    lib.acknowledge_messages.argtypes = *[c_uint64] * 5, ctypes.POINTER(Acknowledged)
    return lib


def acknowledged(lib: Any, count: int, length: int, every: int, ack_ns: int, sends: bool = False) -> Acknowledged:
    """How `count` messages of `length` bytes are acknowledged that come `every` so many nanoseconds."""
    found = Acknowledged()
    assert lib.acknowledge_messages(count, length, every, ack_ns, sends, byref(found)) == 0
    return found


def play(lib: Any, seed: int) -> Outcome:
    outcome = Outcome()
    assert lib.play_messages(seed, byref(outcome)) == 0
    return outcome


@pytest.fixture(scope="module")
def lib(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(build(tmp_path_factory.mktemp("messages"), more=[PLAYER]))


def test_every_seed_ends_with_the_right_bytes(lib: Any) -> None:
    total = dict.fromkeys((*COUNTS, *FLOWS), 0)
    for seed in range(cases(6000)):
        outcome = play(lib, seed)
        assert not outcome.fault, f"seed {seed}: {outcome.fault}; {outcome.told}"
        for name in total:
            total[name] += getattr(outcome, name)
    del total["refused"]
    assert all(value > 20 for value in total.values()), total


def test_a_seed_is_played_again(lib: Any) -> None:
    for seed in range(10):
        assert play(lib, seed).told == play(lib, seed).told


def test_a_liar_is_not_believed(lib: Any) -> None:
    believed = c_uint64()
    for seed in range(cases(4000)):
        assert lib.lie_in_messages(seed, 300, byref(believed)) == 0, f"seed {seed}"
    assert believed.value > 100


def waits_as_it_should(lib: Any) -> bool:
    """Short messages are acknowledged together or late, and by what is sent meanwhile; long ones at once."""
    late = 100_000
    for ack_ns, short, frames in ((0, True, 8), (late, True, 2), (late, False, 8)):
        found = acknowledged(lib, 8, 16 if short else 512, 10_000, ack_ns)
        if (found.frames, found.by_messages) != (frames, 0) or (frames == 8 and found.latest_ns):
            return False
    rare = acknowledged(lib, 8, 16, 10 * late, late)
    busy = acknowledged(lib, 8, 16, 10_000, late, sends=True)
    return (rare.frames, rare.latest_ns) == (8, late) and busy.frames == 0 and busy.by_messages == 8


def test_short_messages_are_acknowledged_together_or_late(lib: Any) -> None:
    assert waits_as_it_should(lib)


MUTANTS = {
    "what a sender says of a message is not kept": Mutant("messages.c", "    r->tag = head->tag;\n", ""),
    "a window that is narrowed stays as it was": Mutant(
        "flow.c", "{ e->config.window_bytes = window_bytes; }", "{ (void)e, (void)window_bytes; }"
    ),
    "sends before the receiver has named its buffer": Mutant(
        "messages.c", "if (l->is != WAITS || !offer->here)", "if (l->is != WAITS)"
    ),
    "a buffer is given back before the wires have read it": Mutant("messages.c", "|| held(m, l))", ")"),
    "a buffer is given back before all is acknowledged": Mutant(
        "messages.c", "return l->is == OUT && l->acked == l->segments;", "return l->is == OUT && l->acked;"
    ),
    "what is withdrawn is sent as it is": Mutant(
        "messages.c", "l->withdrawn ? (uint32_t)WITHDRAWN : (uint32_t)l->length,", "(uint32_t)l->length,"
    ),
    "a whole message is told too early": Mutant(
        "messages.c", "if (++r->landed == segments_of(m, whole))", "if (++r->landed + 1 >= segments_of(m, whole))"
    ),
    "a message is as long as its buffer": Mutant("messages.c", "*length = r->whole;", "*length = r->room;"),
    "a segment is taken twice": Mutant("messages.c", "if (*word & mark)", "if (0)"),
    "a message may be longer than its buffer": Mutant("messages.c", "if (whole > r->room ||", "if ("),
    "a segment may be as long as it likes": Mutant(
        "messages.c", "head->length != segment_length(m, whole, head->offset))", "0)"
    ),
    "a stream is used again before all is acknowledged": Mutant(
        "messages.c", "if (s->is != CLOSING || s->unacked ||", "if (s->is != CLOSING ||"
    ),
    "a credit counts for any message": Mutant("messages.c", "|| offer->number != record->number + i)", ")"),
    "a credit grows after it has been sent": Mutant(
        "messages.c", "if (last->is == LISTED && ", "if (last->is != IDLE && "
    ),
    "a credit promises as much room as the one before": Mutant(
        "messages.c", "== *number && told->room == room)", "== *number)"
    ),
    "a credit says one message": Mutant("messages.c", "        told->count++; /*", "        /*"),
    "what waits is never acknowledged": Mutant(
        "flow.c",
        "        if (e->now_ns < until_ns)\n            again_ns",
        "        if (w->owed < MOST_OWED)\n            again_ns",
    ),
    "acknowledgements that wait do not say until when": Mutant(
        "flow.c", "return least(least(look_ns, owed_ns),", "return least(look_ns,"
    ),
    "long segments wait to be acknowledged": Mutant(
        "flow.c", "window_bytes / OWED_PART;", "window_bytes * OWED_PART;"
    ),
    "what is lost on a wire is held for ever": Mutant(
        "flow.c", "given_back(e, w, w->in_hand);", "e->in_hand -= w->in_hand;\n    w->in_hand = 0;"
    ),
}  # fmt: skip


def find(library: Path, seeds: int) -> None:
    lib = load(library)
    faulthandler.disable()
    believed = c_uint64()
    if not waits_as_it_should(lib):
        sys.exit(1)
    for seed in range(seeds):
        if play(lib, seed).fault or lib.lie_in_messages(seed, 300, byref(believed)):
            sys.exit(1)
    sys.exit(0)


def tried(library: Path, seeds: int) -> int | None:
    """How `find` ends: it may crash, which finds a bug, too. None: it hangs."""
    child = get_context("fork").Process(target=find, args=(library, seeds))
    child.start()
    child.join(300)
    return child.exitcode


QUICK = ("sends before the receiver has named its buffer", "what is lost on a wire is held for ever")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in MUTANTS]
)
def test_a_mutant_is_found(name: str, tmp_path: Path) -> None:
    assert tried(build(tmp_path, MUTANTS[name].planted(tmp_path), LOOSE, [PLAYER]), 2000)


def test_without_a_mutant_nothing_is_found(tmp_path: Path) -> None:
    assert tried(build(tmp_path, more=[PLAYER]), 20) == 0


@pytest.mark.long
def test_sanitizers_find_nothing() -> None:
    command = [sys.executable, "-m", "tests.test_messages", "--sanitize", *map(str, range(200))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=NATIVE.parent)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def main(arguments: Sequence[str]) -> int:
    bad = 0
    if arguments[:1] == ["--sanitize"]:
        with tempfile.TemporaryDirectory() as folder:
            library = build(Path(folder), flags=SANITIZERS, more=[PLAYER])
            command = [sys.executable, "-m", "tests.test_messages", "--library", str(library), *arguments[1:]]
            return subprocess.run(command, cwd=NATIVE.parent, env=sanitized(), check=False).returncode
    with tempfile.TemporaryDirectory() as folder:
        given = arguments[:1] == ["--library"]
        lib = load(Path(arguments[1]) if given else build(Path(folder), more=[PLAYER]))
        believed = c_uint64()
        for seed in map(int, arguments[2 if given else 0 :]):
            outcome = play(lib, seed)
            lies = lib.lie_in_messages(seed, 300, byref(believed))
            print(f"seed {seed}: {outcome.fault or 'right'}; {outcome.told}; {lies} lies believed")
            bad += bool(outcome.fault or lies)
    return bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
