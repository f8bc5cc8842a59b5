"""The dashboard in a real browser: of a real agent, or of answers that a test makes up."""

from __future__ import annotations

import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import copy

import pytest

from tests.browser import chromium
from tests.browser.made_up import MadeUp
from tests.node.conftest import RunningNode, as_user, running_node

FORWARD = Path(__file__).with_name("forward.py")


@dataclass(frozen=True)
class Web:
    """The read-only listener of the agent."""

    port: int
    token_file: Path

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests here, with the reason, where there is no browser."""
    if chromium.find() is None:
        skip = pytest.mark.skip(reason="needs a Chromium (Debian: chromium-headless-shell)")
        for item in items:
            if item.get_closest_marker("browser"):
                item.add_marker(skip)


@pytest.fixture(scope="module")
def tab() -> Iterator[chromium.Page]:
    """One tab, which the tests of a module share."""
    with tempfile.TemporaryDirectory(prefix="chromium-") as profile, chromium.browser(Path(profile)) as page:
        yield page


@pytest.fixture
def page(tab: chromium.Page) -> Iterator[chromium.Page]:
    """The tab, fresh; a test must not leave a complaint behind."""
    tab.call("Page.navigate", url="about:blank")
    tab.complaints.clear()
    tab.look()
    yield tab
    assert tab.complaints == []


@pytest.fixture
def made_up(page: chromium.Page) -> Iterator[MadeUp]:
    """The page's files as the agent serves them, and the API's answers as the test sets them."""
    with MadeUp.behind(page) as answers:
        yield answers


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Web:
    """Where the agent listens by TCP, and the token that it wants there."""
    token = tmp_path_factory.mktemp("web") / "token"
    token.touch(0o600)
    token.write_text("k" * 43)
    with socket.create_server(("127.0.0.1", 0)) as free:
        return Web(free.getsockname()[1], token)


@pytest.fixture(scope="module")
def node(web: Web) -> Iterator[RunningNode]:
    """A real agent on a simulated node."""
    settings = f'[web]\nlisten = "127.0.0.1:{web.port}"\ntoken_file = "{web.token_file}"\n'
    with running_node("mi210", settings=settings) as running:
        running.attacked = False  # nobody is to sit in its leases
        yield running


@pytest.fixture
def forwarded(node: RunningNode) -> Iterator[Callable[[int | None], str]]:
    """The address of a port that leads to the agent, as the user given."""
    started: list[subprocess.Popen[str]] = []
    script = Path(copy(FORWARD, node.client))

    def forward(user: int | None = None) -> str:
        words = ["/usr/bin/python3", str(script), str(node.socket)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, **as_user(user))
        started.append(process)
        assert process.stdout is not None
        return f"http://localhost:{int(process.stdout.readline())}/"

    yield forward
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
