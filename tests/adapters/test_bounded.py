"""Calls that are given up where they do not come back."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from nodeagent.adapters.bounded import Bounded


def test_what_a_call_returns_or_raises_is_handed_on() -> None:
    """To who asked, from the thread that it ran in."""
    bounded = Bounded[int](60)
    assert bounded.call(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        bounded.call(lambda: 1 // 0)


def test_calls_at_once_are_made_one_after_the_other() -> None:
    """Each has its answer: that another one was there first is no reason to give it up."""
    bounded = Bounded[int](60)
    running: list[int] = []

    def alone(number: int) -> int:
        running.append(number)
        assert running == [number]
        running.remove(number)
        return number

    with ThreadPoolExecutor(4) as callers:
        answers = callers.map(lambda number: bounded.call(lambda: alone(number)), range(16))
        assert list(answers) == list(range(16))


def test_a_call_that_does_not_come_back_is_given_up() -> None:
    """So are those after it, until it has: each would leave a thread behind."""
    bounded, late = Bounded[bool](0.1), threading.Event()
    assert bounded.call(late.wait) is None
    try:
        assert bounded.call(lambda: True) is None
    finally:
        late.set()
