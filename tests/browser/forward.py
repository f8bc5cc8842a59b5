"""Serve a unix socket on a port of 127.0.0.1, as ``ssh -L PORT:SOCKET`` does: prints the port.

A program of its own, so that the agent sees the user who runs it.
"""

from __future__ import annotations

import socket
import sys
import threading


def carry(source: socket.socket, sink: socket.socket) -> None:
    """Everything from one to the other, and its end."""
    try:
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        source.close()
        sink.close()


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            near, _ = listener.accept()
            far = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            far.connect(sys.argv[1])
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=carry, args=(one, other), daemon=True).start()


if __name__ == "__main__":
    main()
