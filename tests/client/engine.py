"""The engine of the wrapper's tests, in a directory: its client, its images and the socket of dockerd."""

from __future__ import annotations

import json
import shutil
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from .elf import glibc, program

LOADER = "lib64/ld-linux-x86-64.so.2"


@dataclass
class FakeEngine:
    """*directory* has ``docker``, ``podman`` and ``nerdctl``, and below ``root`` the files of every image."""

    directory: Path

    @property
    def root(self) -> Path:
        return self.directory / "root"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.directory}:/usr/bin:/bin",
            "HOME": str(self.directory / "home"),
            "DOCKER_HOST": f"unix://{self.directory}/docker.sock",
        }

    @property
    def cache(self) -> Path:
        return self.directory / "home/.cache/gpulease/images"

    def write(self, path: str, content: bytes) -> None:
        """A file of the images'."""
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(content)

    def keep(self, name: str, value: Any) -> None:
        (self.directory / name).write_text(json.dumps(value), encoding="utf-8")

    def image(self, name: str, where: str = "images", **config: Any) -> None:
        """Have an image by *name*; *config* are its Entrypoint, Cmd and Env."""
        known = json.loads((self.directory / where).read_text(encoding="utf-8"))
        self.keep(
            where, {**known, name: {"Id": f"sha256:{name}", "Config": {"Cmd": ["/bin/prog"], **config}}}
        )

    def calls(self) -> list[dict[str, Any]]:
        """The calls of the client so far: their words and environment."""
        log = self.directory / "calls"
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        return [json.loads(line) for line in lines]

    def words(self) -> list[list[str]]:
        return [call["words"] for call in self.calls()]

    def last(self) -> dict[str, Any]:
        """The call that made the container."""
        return self.calls()[-1]

    def answer(self, target: str) -> tuple[int, Any]:
        """dockerd's."""
        if target == "/info":
            return 200, json.loads((self.directory / "info").read_text(encoding="utf-8"))
        images = json.loads((self.directory / "images").read_text(encoding="utf-8"))
        found = images.get(target.removeprefix("/images/").removesuffix("/json"))
        return (200, found) if found else (404, {"message": "No such image"})


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = self.server.engine.answer(self.path)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        pass


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    engine: FakeEngine


@contextmanager
def fake_engine(directory: Path) -> Iterator[FakeEngine]:
    """An engine with an image ``img`` of glibc 2.36, whose program is ``/bin/prog``."""
    engine = FakeEngine(directory)
    for name in ("docker", "podman", "nerdctl"):
        source = (Path(__file__).parent / "fake_engine.py").read_text(encoding="utf-8")
        (directory / name).write_text(f"#!{sys.executable}\n{source}", encoding="utf-8")
        (directory / name).chmod(0o755)
    for name, value in (("images", {}), ("registry", {}), ("info", {}), ("exit", 0)):
        engine.keep(name, value)
    engine.image("img")
    engine.write("bin/prog", program(f"/{LOADER}"))
    engine.write(LOADER, glibc(36))
    engine.write("lib/x86_64-linux-gnu/libc.so.6", glibc(36))
    with _Server(str(directory / "docker.sock"), _Handler) as server:
        server.engine = engine
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield engine
        server.shutdown()
        thread.join()
    shutil.rmtree(directory, ignore_errors=True)
