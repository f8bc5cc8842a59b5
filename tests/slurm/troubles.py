"""Agents in trouble: what makes Slurm's scripts get no answer, or a useless one."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator

from .agent import SOCKET
from .lab import Lab
from .space import end

Trouble = Callable[[Lab], contextlib.AbstractContextManager[str]]
ELSEWHERE = "/run/nodeagent/elsewhere"
# Answers each call on the socket named by its first argument as the second says.
ANSWERING = """
import os, socket, sys
path, answer = sys.argv[1:]
os.makedirs(os.path.dirname(path), exist_ok=True)
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
print("ready", flush=True)
while True:
    caller, _ = listener.accept()
    caller.recv(1 << 16)
    caller.sendall(answer.encode().decode("unicode_escape").encode())
    caller.close()
"""
ANSWERS = {
    "500": r"HTTP/1.1 500 Sick\r\nContent-Length: 0\r\n\r\n",
    "503": r"HTTP/1.1 503 Full\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n",
    "cut short": r"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\ngranted\nlease 7\n",
    "another word": r"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nwelcome\n",
}


@contextlib.contextmanager
def stopped(lab: Lab) -> Iterator[str]:
    """Nobody listens."""
    lab.agent.stop()
    yield SOCKET
    lab.agent.start()


@contextlib.contextmanager
def hung(lab: Lab) -> Iterator[str]:
    """Connections are taken, and never answered."""
    lab.agent.pause()
    yield SOCKET
    lab.agent.resume()


@contextlib.contextmanager
def full(lab: Lab) -> Iterator[str]:
    """The file system of the ledger is full."""
    state, run = str(lab.agent.state), lab.node.space.run
    lab.agent.stop()
    run("mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs", state)
    lab.agent.start()
    run("dd", "if=/dev/zero", f"of={state}/filler", "bs=64k")
    yield SOCKET
    run("rm", f"{state}/filler")
    lab.await_nothing()
    lab.agent.stop()
    run("umount", state)
    lab.agent.start()


def answering(name: str) -> Trouble:
    """Every call gets one of the ANSWERS."""

    @contextlib.contextmanager
    def answering(lab: Lab) -> Iterator[str]:
        path = f"{ELSEWHERE}/{name.replace(' ', '-')}.sock"
        words = ("/usr/bin/python3", "-c", ANSWERING, path, ANSWERS[name])
        with lab.node.space.start(*words, stdout=subprocess.PIPE) as process:
            assert process.stdout and process.stdout.readline() == "ready\n"
            yield path
            end(process)
        lab.node.path(path).unlink()

    return answering


# Each breaks the agent, yields the socket that the scripts are to ask, and mends it.
TROUBLES: dict[str, Trouble] = {
    "stopped": stopped,
    "hung": hung,
    "full": full,
    **{name: answering(name) for name in ANSWERS},
}
