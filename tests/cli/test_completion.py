"""What bash offers at a Tab for `nodeagent` is what the command has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from nodeagent.cli.main import cli

ASK = """
source {script}
PATH={bin}:$PATH
COMP_WORDS=({words}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_nodeagent_completion nodeagent
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("dr",), {"drain"}),
        (("config", "s"), {"show"}),
        (("partition", "set", "x", "q"), {"qpx"}),
        (("drain", "--un"), {"--until"}),
        (("completion", "f"), {"fish"}),
    ],
)
def test_bash_offers_what_fits(tmp_path: Path, words: tuple[str, ...], wanted: set[str]) -> None:
    """Commands, options and values, by where the word stands."""
    script = tmp_path / "nodeagent"
    script.write_text(CliRunner().invoke(cli, ["completion", "bash"]).stdout)
    line = " ".join(f"'{word}'" for word in ("nodeagent", *words))
    asked = ASK.format(script=script, bin=Path(sys.executable).parent, words=line)
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    assert (set(done.stdout.split()), done.stderr) == (wanted, "")
