"""The sensors of a card: as many as it has, and none at the price of waking it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.adapters.links import read_link
from nodeagent.adapters.sensors import read_sensors
from nodeagent.adapters.sysfs import SysTree
from nodeagent.domain.measures import PciLink, Sensors

CARD = "0000:03:00.0"
FILES = {
    "mem_info_vram_used": "4096",
    "gpu_busy_percent": "37",
    "hwmon/hwmon3/temp1_input": "45500",
    "hwmon/hwmon3/power1_average": "215000000",
}


def card(root: Path, **changes: str | None) -> SysTree:
    files = {**FILES, **{name.replace("__", "/"): text for name, text in changes.items()}}
    for name, text in files.items():
        path = root / "sys/bus/pci/devices" / CARD / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            path.write_text(f"{text}\n")
    return SysTree(root)


def test_a_card_that_is_awake_is_read(tmp_path: Path) -> None:
    """Memory, load, temperature and power, in bytes, percent, degrees and watts."""
    assert read_sensors(card(tmp_path), CARD) == Sensors(4096, 37, 45.5, 215.0)


@pytest.mark.parametrize("status", ["active", "unsupported"])
def test_power_management_that_is_on_or_absent_is_no_obstacle(tmp_path: Path, status: str) -> None:
    """A card that runs, or whose power is not managed, is read."""
    assert read_sensors(card(tmp_path, power__runtime_status=status), CARD).celsius == 45.5


@pytest.mark.parametrize("status", ["suspended", "suspending", "resuming", "error"])
def test_a_card_that_sleeps_is_let_sleep(tmp_path: Path, status: str) -> None:
    """Of a card that is not running only its memory's count is read, which the driver keeps itself."""
    assert read_sensors(card(tmp_path, power__runtime_status=status), CARD) == Sensors(4096)


def test_newer_cards_have_the_power_of_now(tmp_path: Path) -> None:
    """Where there is no average of the power, its present value is taken."""
    tree = card(tmp_path, hwmon__hwmon3__power1_average=None, hwmon__hwmon3__power1_input="90500000")
    assert read_sensors(tree, CARD).watts == 90.5


def test_what_is_absent_or_garbled_is_no_reading(tmp_path: Path) -> None:
    """Nothing is made up for a sensor that is not there, or that says what cannot be."""
    tree = card(tmp_path, gpu_busy_percent="140", hwmon__hwmon3__temp1_input="hot", mem_info_vram_used="-1")
    assert read_sensors(tree, CARD) == Sensors(None, None, None, 215.0)
    assert read_sensors(tree, "0000:04:00.0") == Sensors()


def test_a_link_has_lanes_and_a_speed(tmp_path: Path) -> None:
    """Width and speed, now and at most; an unknown speed is none."""
    links = {"current_link_width": "8", "max_link_width": "16", "max_link_speed": "32.0 GT/s PCIe"}
    tree = card(tmp_path, current_link_speed="16.0 GT/s PCIe", **links)
    assert read_link(tree, CARD) == PciLink(8, 16, 16.0, 32.0)
    tree = card(tmp_path, current_link_speed="Unknown")
    assert read_link(tree, CARD) == PciLink(8, 16, None, 32.0)


@pytest.mark.parametrize("width", ["0", "63", "255", "x", "-1"])
def test_a_link_that_cannot_be_is_none(tmp_path: Path, width: str) -> None:
    """A bus that answers nothing reads as all ones; nothing is concluded from that."""
    assert read_link(card(tmp_path, current_link_width=width, max_link_width="16"), CARD) is None


def test_a_sleeping_cards_link_is_not_looked_at(tmp_path: Path) -> None:
    """The kernel would wake the card to answer."""
    links = {"current_link_width": "8", "max_link_width": "16"}
    assert read_link(card(tmp_path, power__runtime_status="suspended", **links), CARD) is None
