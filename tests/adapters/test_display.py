"""Cards that drive a display are told by a connector that is connected and enabled."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.adapters.display import lit_connector
from nodeagent.adapters.sysfs import SysTree

PCI = "0000:03:00.0"


@pytest.mark.parametrize(
    ("status", "enabled", "lit"),
    [
        ("connected", "enabled", "card1-DP-2"),
        ("connected", "disabled", None),
        ("disconnected", "enabled", None),
    ],
)
def test_a_connector_is_lit_if_connected_and_enabled(tmp_path: Path, status, enabled, lit) -> None:
    """A cable alone shows nothing."""
    connector = tmp_path / f"sys/bus/pci/devices/{PCI}/drm/card1/card1-DP-2"
    connector.mkdir(parents=True)
    (connector / "status").write_text(f"{status}\n")
    (connector / "enabled").write_text(f"{enabled}\n")
    (connector.parent / "power").mkdir()
    assert lit_connector(SysTree(tmp_path), PCI) == lit


def test_a_card_without_connectors_drives_none(tmp_path: Path) -> None:
    """Accelerators have none, and a card may have no DRM node."""
    assert lit_connector(SysTree(tmp_path), PCI) is None
