"""A command line as one line for a shell."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence


def shell_line(words: Sequence[str]) -> str:
    """*words* in ASCII, whatever is in them: bash, zsh and ksh know ``$'…'``."""
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    if word.isascii() and (word.isprintable() or not word):
        return shlex.quote(word)
    shown = (
        chr(byte) if 0x20 <= byte < 0x7F and chr(byte) not in "'\\" else f"\\x{byte:02x}"
        for byte in os.fsencode(word)
    )
    return f"$'{''.join(shown)}'"
