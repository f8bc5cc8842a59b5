"""Whose descriptors root takes: none of a privileged program's, though its ids are its user's."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nodeagent.adapters.supervisor import Offered
from nodeagent.domain.errors import NotAllowed

from .conftest import Lab

pytestmark = [pytest.mark.cgroup2, pytest.mark.root]
PR_SET_DUMPABLE = 4


@pytest.mark.parametrize("dumpable", [1, 0])
def test_a_privileged_program_hands_on_nothing(lab: Lab, dumpable: int) -> None:
    """What file capabilities or setuid left undumpable is refused; an ordinary process of the uid is not."""

    @contextmanager
    def program(offered: Offered, uid: int) -> Iterator[int]:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, dumpable)
            os.write(writing, b"x")
            signal.pause()
        os.read(reading, 1)
        try:
            yield child
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reading)
            os.close(writing)

    if dumpable:
        assert lab.start("/bin/true", caller=program).end() == ([], 0)
    else:
        with pytest.raises(NotAllowed, match="privileged"):
            lab.start("/bin/true", caller=program)
