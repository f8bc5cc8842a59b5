"""Whose descriptors root takes: none of a privileged program's, though its ids are its user's."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

import pytest

from nodeagent.adapters.peer import Peer
from nodeagent.domain.errors import NotAllowed
from nodeagent.service.launch import _check_plain

USER, PR_SET_DUMPABLE = 12345, 4


@pytest.mark.root
@pytest.mark.parametrize("dumpable", [1, 0])
def test_a_privileged_program_hands_on_nothing(dumpable: int) -> None:
    """What file capabilities or setuid left undumpable is refused; an ordinary process of the uid is not."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, dumpable)
        os.write(writing, b"x")
        signal.pause()
    try:
        os.read(reading, 1)
        assert Path(f"/proc/{child}").exists()
        peer = Peer(child, USER, USER, (), None)
        if dumpable:
            _check_plain(peer)
        else:
            with pytest.raises(NotAllowed, match="privileged"):
                _check_plain(peer)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)
