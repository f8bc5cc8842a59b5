"""What the kernel's announcements mean, and that nothing else is read into them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.domain.uevents import Rescan, Reset, Uevent, meaning

CARD = "/devices/pci0000:c0/0000:c0:01.1/0000:c1:00.0/drm/card1"
WEDGED = {"ACTION": "change", "SUBSYSTEM": "drm", "DEVPATH": CARD, "WEDGED": "none"}


def test_a_wedged_card_was_reset() -> None:
    """The PCI function is the last one on the path; bridges before it are not meant."""
    assert meaning(Uevent.of(WEDGED)) == Reset("0000:c1:00.0", "none")


def test_the_guilty_task_is_told_where_the_kernel_tells_it() -> None:
    """By name and pid, by one of them, or not at all."""
    told = meaning(Uevent.of({**WEDGED, "WEDGED": "rebind", "PID": "4711", "TASK": "python3"}))
    assert told == Reset("0000:c1:00.0", "rebind", 4711, "python3")
    assert told.guilty == "python3 (4711)"
    assert Reset("0000:c1:00.0", "none", pid=4711).guilty == "process (4711)"
    assert Reset("0000:c1:00.0", "none").guilty is None


def test_a_task_cannot_name_itself_into_a_log() -> None:
    """A name of a user's choosing keeps its plain characters, and a bad pid is none."""
    event = Uevent.of({**WEDGED, "PID": "-1 x", "TASK": "a\nb=c; $(d) éfghij"})
    assert (event.pid, event.task) == (None, "a?b?c????d???fg")


@pytest.mark.parametrize("subsystem", ["drm", "pci", "kfd"])
@pytest.mark.parametrize("action", ["add", "remove", "bind", "unbind"])
def test_what_comes_or_goes_calls_for_a_scan(subsystem: str, action: str) -> None:
    """Cards, partitions, drivers and KFD itself."""
    assert meaning(Uevent(action, subsystem, CARD)) == Rescan()


@pytest.mark.parametrize(
    "fields",
    [
        {"WEDGED": None, "HOTPLUG": "1"},  # a monitor
        {"ACTION": "offline"},
        {"SUBSYSTEM": "net"},
        {"SUBSYSTEM": "pci"},
        {"WEDGED": None, "SYNTH_ARG_WEDGED": "none"},  # root's own, by hand
    ],
)
def test_everything_else_means_nothing(fields: dict[str, str | None]) -> None:
    """Other changes of a card, and other subsystems, whatever they carry."""
    merged = {**WEDGED, **fields}
    assert meaning(Uevent.of({k: v for k, v in merged.items() if v is not None})) is None


def test_a_reset_of_nobody_known_where_calls_for_a_scan() -> None:
    """A card that is no PCI function loses no lease, but is looked at."""
    assert meaning(Uevent.of({**WEDGED, "DEVPATH": "/devices/platform/amdgpu_xcp.0/drm/card9"})) == Rescan()


@given(
    st.dictionaries(st.sampled_from(["ACTION", "SUBSYSTEM", "DEVPATH", "WEDGED", "PID", "TASK"]), st.text())
)
def test_any_text_is_an_event(fields: dict[str, str]) -> None:
    """No field makes the reading fail, and none without a card's change is a reset."""
    found = meaning(Uevent.of(fields))
    assert not isinstance(found, Reset) or fields["SUBSYSTEM"] == "drm"
