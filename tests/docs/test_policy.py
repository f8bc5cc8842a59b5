"""The settings in docs/policy.md are settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nodeagent.config import check, policy_sections

PAGE = Path(__file__).resolve().parents[2] / "docs" / "policy.md"
EXAMPLES = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_are_settings(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a node that has the users and groups they name, `config check` has no complaint of them."""
    for name in ("uid_of", "gid_of"):
        monkeypatch.setattr(policy_sections, name, lambda _: 1000)
    path = tmp_path / "nodeagent.toml"
    path.write_text(example, encoding="utf-8")
    path.chmod(0o644)
    settings, complaints = check(path)
    assert complaints == []
    assert settings != check(tmp_path / "none")[0]
