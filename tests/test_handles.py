"""Operations run in the order of calls, and what a callback calls right after its operation; no wait is for ever."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from optcc.communicator import handles
from optcc.communicator.handles import InOrder

BOUND_S = 60.0


@pytest.fixture
def order() -> Iterator[InOrder]:
    made = InOrder("operations", BOUND_S)
    yield made
    made.settle()


class Book:
    """Operations that note that they ran; the first one waits until all others have been given."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.given = threading.Event()

    def __call__(self, name: str) -> Callable[[], str]:
        def work() -> str:
            if name == "first":
                assert self.given.wait(BOUND_S)
            self.ran.append(name)
            return name

        return work


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("waits", [True, False])
def test_what_a_callback_calls_comes_before_what_waits(order: InOrder, depth: int, waits: bool) -> None:
    book = Book()
    over = threading.Event()

    def deeper(level: int) -> Callable[[Any], None]:
        def callback(_: Any) -> None:
            if level > depth:
                return over.set()
            if not waits:
                order.run(book(f"nested {level}"), async_op=True).future.add_done_callback(deeper(level + 1))
            else:
                assert order.run(book(f"nested {level}"), async_op=False) == f"nested {level}"
                deeper(level + 1)(None)
            return None

        return callback

    first = order.run(book("first"), async_op=True)
    first.future.add_done_callback(deeper(1))
    rest = [order.run(book(name), async_op=True) for name in ("second", "third")]
    book.given.set()
    assert [handle.wait(BOUND_S) for handle in (first, *rest)] == ["first", "second", "third"]
    assert over.wait(BOUND_S)
    assert book.ran == ["first", *(f"nested {level + 1}" for level in range(depth)), "second", "third"]
    assert order.run(book("last"), async_op=False) == "last"


def test_a_callback_that_is_late_has_the_same_order(order: InOrder) -> None:
    book = Book()
    book.given.set()
    first = order.run(book("first"), async_op=True)
    first.wait(BOUND_S)
    seen: list[int] = []
    first.future.add_done_callback(lambda _: seen.append(threading.get_ident()))
    first.future.add_done_callback(lambda _: order.run(book("nested"), async_op=True).wait(BOUND_S))
    order.run(book("second"), async_op=False)
    assert book.ran == ["first", "nested", "second"]
    assert seen == [threading.get_ident()]


@pytest.mark.parametrize("by_future", [True, False])
def test_a_callback_may_wait_for_what_comes_later(
    order: InOrder, monkeypatch: pytest.MonkeyPatch, by_future: bool
) -> None:
    """By the future that is known to the thread that runs operations at once, else by and by."""
    monkeypatch.setattr(handles, "CALLBACK_S", 10 * BOUND_S if by_future else 0.05)
    book = Book()
    rest: list[Any] = []
    later, over = threading.Event(), threading.Event()

    def callback(_: Any) -> None:
        assert rest[0].wait() == "second" if by_future else later.wait(BOUND_S)
        assert order.run(book("nested"), async_op=False) == "nested"
        over.set()

    first = order.run(book("first"), async_op=True)
    first.future.add_done_callback(callback)
    rest.append(order.run(book("second"), async_op=True))
    rest[0].future.add_done_callback(lambda _: later.set())
    book.given.set()
    assert over.wait(BOUND_S)
    assert book.ran == ["first", "second", "nested"]


def test_many_callbacks_that_wait_do_not_stop_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "CALLBACK_S", 0.01)
    monkeypatch.setattr(handles, "CALLBACKS", 2)
    order = InOrder("operations", BOUND_S)
    book = Book()
    free = threading.Event()
    for name in ("first", *map(str, range(8))):
        order.run(book(name), async_op=True).future.add_done_callback(lambda _: free.wait(BOUND_S))
    book.given.set()
    assert order.run(book("last"), async_op=False) == "last"
    free.set()
    order.settle()


def test_no_wait_is_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "BESIDE_S", 0.0)
    monkeypatch.setattr(handles, "CALLBACK_S", 0.01)
    order, free = InOrder("operations", 0.05), threading.Event()
    handle = order.run(lambda: free.wait(BOUND_S), async_op=True)
    with pytest.raises(TimeoutError):
        handle.wait()
    with pytest.raises(TimeoutError):
        handle.future.exception()
    with pytest.raises(TimeoutError):
        order.run(lambda: None, async_op=False)  # behind it
    free.set()
    order.settle()


def test_errors_of_operations_and_of_callbacks(order: InOrder, caplog: pytest.LogCaptureFixture) -> None:
    book = Book()
    book.given.set()
    failing = order.run(lambda: 1 // 0, async_op=True)
    failing.future.add_done_callback(lambda future: book.ran.append(type(future.exception()).__name__))
    failing.future.add_done_callback(lambda _: [][0])
    with caplog.at_level(logging.ERROR):
        assert order.run(book("next"), async_op=False) == "next"
    with pytest.raises(ZeroDivisionError):
        failing.wait()
    assert book.ran == ["ZeroDivisionError", "next"]


def test_who_ends_in_a_callback_does_not_wait_for_itself() -> None:
    order, over = InOrder("operations", BOUND_S), threading.Event()
    given = threading.Event()
    handle = order.run(lambda: given.wait(BOUND_S), async_op=True)

    def end(_: Any) -> None:
        order.settle()
        over.set()

    handle.future.add_done_callback(end)
    given.set()
    assert over.wait(BOUND_S)
