"""`nodeagent metrics`: to stdout, or as a file that node_exporter reads."""

from __future__ import annotations

import socketserver
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nodeagent.cli.main import cli

TEXT = "# TYPE nodeagent_ready gauge\nnodeagent_ready 1.0\n"


@pytest.fixture
def socket(tmp_path: Path) -> Iterator[Path]:
    """The socket of an agent that has metrics and nothing else."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = TEXT.encode() if self.path == "/metrics" else b"{}"
            self.send_response(200 if self.path == "/metrics" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

        def address_string(self) -> str:
            return "test"

    path = tmp_path / "api.sock"
    with socketserver.ThreadingUnixStreamServer(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield path
        server.shutdown()
        thread.join()


def run(socket: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["metrics", "--socket", str(socket), *words])


def test_metrics_go_to_stdout(socket: Path) -> None:
    """As the agent has them."""
    done = run(socket)
    assert (done.exit_code, done.stdout) == (0, TEXT)


def test_a_textfile_is_replaced_whole(socket: Path, tmp_path: Path) -> None:
    """Others can read it, it says that the agent answered, and nothing else is left in the directory."""
    directory = tmp_path / "textfiles"
    directory.mkdir(mode=0o755)
    path = directory / "nodeagent.prom"
    path.write_text("old")
    done = run(socket, "--textfile", str(path))
    assert done.exit_code == 0, done.output
    assert path.read_text().startswith(TEXT) and path.read_text().endswith("nodeagent_up 1\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [one.name for one in directory.iterdir()] == ["nodeagent.prom"]


def test_an_agent_that_is_down_has_no_old_figures(tmp_path: Path) -> None:
    """The file says 0 and nothing else, and the exit code is 2."""
    path = tmp_path / "nodeagent.prom"
    path.write_text(TEXT)
    done = run(tmp_path / "none", "--textfile", str(path))
    assert done.exit_code == 2
    assert path.read_text().endswith("nodeagent_up 0\n") and "nodeagent_ready" not in path.read_text()


def test_root_writes_nowhere_that_others_do(socket: Path, tmp_path: Path) -> None:
    """A directory that others may write to could hold their links: it is refused, and nothing is there."""
    directory = tmp_path / "theirs"
    directory.mkdir()
    directory.chmod(0o777)
    done = run(socket, "--textfile", str(directory / "nodeagent.prom"))
    assert done.exit_code != 0 and "others can write here" in str(done.exception)
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "why"), [("nodeagent.txt", "end in .prom"), ("none/x.prom", "no such directory")]
)
def test_a_file_that_nobody_would_read_is_refused(socket: Path, tmp_path: Path, name: str, why: str) -> None:
    """node_exporter reads *.prom, of a directory that exists."""
    done = run(socket, "--textfile", str(tmp_path / name))
    assert done.exit_code != 0 and why in done.output + str(done.exception)
