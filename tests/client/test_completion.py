"""What a shell offers at a Tab is what the parser takes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpulease.cli import build_parser
from gpulease.completion import SCRIPTS, commands

ASK = """
source {script}
COMP_WORDS=({words}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_gpulease
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def offered(tmp_path: Path) -> Any:
    """What bash offers for the last word of a line."""
    script = tmp_path / "gpulease"
    script.write_text(SCRIPTS["bash"](commands(build_parser())))

    def ask(*words: str) -> set[str]:
        line = " ".join(f"'{word}'" for word in ("gpulease", *words))
        done = subprocess.run(
            ["bash", "-c", ASK.format(script=script, words=line)], capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        return set(done.stdout.split())

    return ask


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("st",), {"status"}),
        (("re",), {"renew", "release"}),
        (("--socket", "release", "re"), {"renew", "release"}),
        (("completion", ""), {"bash", "zsh", "fish"}),
        (("grant", "--sh"), {"--shape"}),
        (("grant", "--shape", ""), {"even", "exact"}),
        (("run", "--priority", "h"), {"high"}),
        (("--json", "status", "--state", "fa"), {"failed"}),
        (("grant", "--vram", ""), set()),
        (("run", "--", "--sh"), set()),
        (("nothing", "--"), set()),
    ],
)
def test_bash_offers_what_fits(offered: Any, words: tuple[str, ...], wanted: set[str]) -> None:
    """Commands, options and values, by where the word stands; behind -- the shell's own."""
    assert offered(*words) == wanted


def test_every_option_of_a_command_is_offered(offered: Any) -> None:
    """All that the parser has, and nothing else."""
    for command in commands(build_parser()):
        known = {spelling for option in command.options for spelling in option.spellings}
        assert offered(command.name, "-") == known


@pytest.mark.parametrize("shell", sorted(SCRIPTS))
def test_each_shell_reads_its_script(gpulease: Any, tmp_path: Path, shell: str) -> None:
    """Without a complaint."""
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    done = gpulease("completion", shell)
    assert done.returncode == 0
    script = tmp_path / "script"
    script.write_text(done.stdout)
    read = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")


def test_no_agent_is_asked(agent: Any, gpulease: Any) -> None:
    """The script is made, and completes, without one."""
    assert gpulease("completion", "bash").returncode == 0
    assert agent.requests == []
