"""A terminal that one program draws on as a whole, and gives back as it was."""

from __future__ import annotations

import os
import select
import signal
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Optional

from gpulease.relay import ENDING, Interrupted
from gpulease.screen import Screen

# ECMA-48, and xterm's private modes: the other screen, the cursor, lines that are cut and not wrapped.
_TAKE = ("\x1b[?1049h", "\x1b[?25l", "\x1b[?7l")
_GIVE_BACK = ("\x1b[?7h", "\x1b[?25h", "\x1b[?1049l")
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_SMALLEST = (24, 80)


class Terminal:
    """What is drawn on, and what its keys say. Make it with `taken`."""

    def __init__(self, screen: Screen, keys: int, woken: int) -> None:
        self._screen = screen
        self._keys = keys
        self._woken = woken

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows, as they are now."""
        try:
            return tuple(os.get_terminal_size(self._keys))  # type: ignore[return-value]
        except OSError:
            return _SMALLEST[1], _SMALLEST[0]

    def draw(self, lines: Sequence[str]) -> None:
        """Show *lines*, which are finished: nothing but `Screen` made them."""
        rows = self.size[1]
        shown = f"{_REST_OF_LINE}\r\n".join(lines[:rows])
        self._screen.command(_HOME, shown, _REST_OF_LINE, _REST_OF_SCREEN)
        self._screen.flush()

    def key(self, seconds: float) -> str:
        """The key that comes within *seconds*; nothing where none did, or the window has another size now."""
        ready, _, _ = select.select([self._keys, self._woken], [], [], seconds)
        if self._woken in ready:
            os.read(self._woken, 64)
        if self._keys not in ready:
            return ""
        # One, for more may have been pressed. None at all is the terminal's end.
        return os.read(self._keys, 1).decode("ascii", "replace") or "q"


@contextmanager
def taken(screen: Screen, keys: int) -> Iterator[Terminal]:
    """Have the terminal until the end of the block, whatever ends it: also a signal that ends a program.

    Raises:
        Interrupted: such a signal came, within the block.
    """
    before = termios.tcgetattr(keys)
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    kept = {
        one: signal.signal(one, _interrupt) for one in ENDING if signal.getsignal(one) is not signal.SIG_IGN
    }
    resized = signal.signal(signal.SIGWINCH, lambda _number, _frame: None)
    waker = signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    try:
        tty.setcbreak(keys)
        screen.command(*_TAKE)
        yield Terminal(screen, keys, woken)
    finally:
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGWINCH, resized)
        for one, handler in kept.items():
            signal.signal(one, handler)
        screen.command(*_GIVE_BACK)
        screen.flush()
        termios.tcsetattr(keys, termios.TCSADRAIN, before)
        os.close(woken)
        os.close(wakes)


def _interrupt(number: int, _frame: Optional[FrameType]) -> None:
    raise Interrupted(number)
