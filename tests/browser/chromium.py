"""A headless Chromium, driven through DevTools' pipe: no port, no WebSocket, no network.

Messages are JSON that ends in NUL (``--remote-debugging-pipe``): the browser reads descriptor 3, writes 4.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser")
SECONDS = 30
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--no-proxy-server", "--mute-audio"),
    *(
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
        "--remote-debugging-pipe",
    ),
    *("--hide-scrollbars", "--force-device-scale-factor=1", "--lang=en"),
)
Message = dict[str, Any]


def find() -> str | None:
    """The browser's program; None where this machine has none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class BrowserFault(Exception):
    """The browser ended, said no, or did not come to what was waited for."""


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """One page of a browser of its own, which ends with it."""
    program = find()
    assert program is not None, "Debian has it as chromium-headless-shell"
    reads, sends = os.pipe()
    receives, writes = os.pipe()
    # bash, because dash knows no descriptors above 9: it puts the two ends where the browser wants them.
    shell = f'exec 3<&{reads} 4>&{writes}; exec "$@"'
    words = ["bash", "-c", shell, "bash", program, *_FLAGS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        words, pass_fds=(reads, writes), stdin=subprocess.DEVNULL, stderr=(profile / "log").open("wb")
    )
    os.close(reads)
    os.close(writes)
    try:
        yield Page.first(Pipe(sends, receives))
    finally:
        os.close(sends)  # the browser ends when nobody speaks to it any more
        os.close(receives)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass
class Pipe:
    """Calls and events, in one thread: events come while an answer is waited for."""

    sends: int
    receives: int
    listeners: list[Callable[[Message], None]] = field(default_factory=list)
    _last: int = 0
    _unread: bytes = b""
    _answers: dict[int, Message] = field(default_factory=dict)

    def send(self, method: str, session: str | None = None, **parameters: Any) -> int:
        """A call whose answer nobody waits for; its number."""
        self._last += 1
        message: Message = {"id": self._last, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self.sends, json.dumps(message).encode() + b"\0")
        return self._last

    def call(self, method: str, session: str | None = None, **parameters: Any) -> Message:
        number, deadline = self.send(method, session, **parameters), time.monotonic() + SECONDS
        while number not in self._answers:
            if time.monotonic() > deadline:
                raise BrowserFault(f"{method}: no answer in {SECONDS} s")
            self.listen(0.2)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise BrowserFault(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def listen(self, seconds: float) -> None:
        """Take in what has come, or comes within *seconds*."""
        if not select.select([self.receives], [], [], seconds)[0]:
            return
        received = os.read(self.receives, 1 << 20)
        if not received:
            raise BrowserFault("the browser has ended")
        *whole, self._unread = (self._unread + received).split(b"\0")
        for text in whole:
            message = json.loads(text)
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                for listener in self.listeners:
                    listener(message)


@dataclass
class Page:
    """One tab. *complaints* are violations of its policy, uncaught exceptions and errors of its console."""

    pipe: Pipe
    session: str
    complaints: list[str] = field(default_factory=list)
    frozen: bool = False

    @classmethod
    def first(cls, pipe: Pipe) -> Page:
        target = pipe.call("Target.createTarget", url="about:blank")["targetId"]
        page = cls(pipe, pipe.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        pipe.listeners.append(page._note)
        for domain in ("Page", "Runtime", "Log", "Audits"):
            page.call(f"{domain}.enable")
        return page

    def call(self, method: str, **parameters: Any) -> Message:
        return self.pipe.call(method, self.session, **parameters)

    def send(self, method: str, **parameters: Any) -> None:
        self.pipe.send(method, self.session, **parameters)

    def open(self, url: str, ready: str = "true") -> None:
        """Go there, and wait until the expression *ready* is true."""
        self.call("Page.navigate", url=url)
        self.until(f"location.href.startsWith({json.dumps(url.partition('#')[0])}) && {ready}")

    def value(self, expression: str) -> Any:
        """What the expression comes to in the page, a promise's value too."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise BrowserFault(f"{expression}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def until(self, expression: str, seconds: float = SECONDS) -> None:
        """Wait until the expression is true in the page."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if self.value(f"!!({expression})"):  # an element by value is an empty object
                    return
            except BrowserFault as fault:  # a page that is being left has no context
                if "has ended" in str(fault) or time.monotonic() > deadline:
                    raise
            if time.monotonic() > deadline:
                text = self.value("document.body.innerText")
                raise BrowserFault(f"never: {expression}; {self.complaints}; the page says:\n{text}")
            self.pipe.listen(0.1)

    def press(self, key: str, text: str = "", shift: bool = False) -> None:
        """One key, as from a keyboard."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}
        common = {"key": key, "windowsVirtualKeyCode": codes.get(key, 0), "modifiers": 8 if shift else 0}
        typed = text or {"Enter": "\r", " ": " "}.get(key, "")
        self.call("Input.dispatchKeyEvent", type="keyDown", text=typed, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def look(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """The window's size, and which colours its owner likes."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> None:
        """What is in the window, as a PNG."""
        shot = self.call("Page.captureScreenshot", format="png", optimizeForSpeed=False)
        path.write_bytes(base64.b64decode(shot["data"]))

    def tree(self) -> list[Message]:
        """What a screen reader is told."""
        self.call("Accessibility.enable")
        return [node for node in self.call("Accessibility.getFullAXTree")["nodes"] if not node.get("ignored")]

    def _note(self, message: Mapping[str, Any]) -> None:
        if message.get("sessionId") != self.session:
            return
        method, about = message["method"], message["params"]
        if method == "Runtime.exceptionThrown":
            self.complaints.append(about["exceptionDetails"].get("exception", {}).get("description", "?"))
        elif method == "Audits.issueAdded":
            self.complaints.append(json.dumps(about["issue"]))
        elif method == "Log.entryAdded" and about["entry"]["source"] == "security":
            self.complaints.append(about["entry"]["text"])
