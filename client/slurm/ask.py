"""Ask the agent where there is no curl: METHOD SOCKET PATH SECONDS, with the body on stdin.

Prints the answer's text, a newline, the HTTP status and a space, as agent.sh has curl do; nothing where no
whole answer came in time. Uses the standard library of Python 3.6 and later. Run with -I, so that neither
variables nor files of a user change what is imported.
"""

import http.client
import signal
import socket
import sys

LIMIT = 8192  # bytes of an answer; agent.sh reads no more


class Connection(http.client.HTTPConnection):
    """HTTP over the unix socket *path*."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self._path)


def main() -> None:
    method, path, target, seconds = sys.argv[1:]
    signal.setitimer(signal.ITIMER_REAL, float(seconds))  # ends the process, wherever it waits
    connection = Connection(path)
    headers = {"Content-Type": "application/octet-stream", "Accept": "text/plain"}
    connection.request(method, target, sys.stdin.buffer.read(), headers)
    answer = connection.getresponse()
    text = answer.read(LIMIT)
    if answer.length:  # cut off, or longer: http.client says so of a read without a limit only
        sys.exit(1)
    sys.stdout.buffer.write(text + b"\n%d " % answer.status)


if __name__ == "__main__":
    main()
