"""Every shipped machine file serves, and shows what its machine is known to be."""

from __future__ import annotations

import json

import pytest

# Values printed by the machines themselves; the provenance of each is in tests/machines/README.md.
KNOWN = {
    "mi300x-spx": {"devices": 8, "cus": 304, "gfx": "gfx942", "xccs": 8, "row": 32, "queue_slots": 24},
    "mi300x-cpx": {"devices": 63, "cus": 38, "gfx": "gfx942", "xccs": 1, "row": 4, "queue_slots": 24},
    "mi210": {"devices": 8, "cus": 104, "gfx": "gfx90a", "xccs": 1, "row": 8, "queue_slots": 24},
    "vega10": {"devices": 2, "cus": 64, "gfx": None, "xccs": 1, "row": 4, "vram_bytes": 17_163_091_968},
    "rx7900xtx": {"devices": 1, "cus": 96, "gfx": "gfx1100", "xccs": 1, "row": 24, "queue_slots": 8},
    "r9700": {"devices": 1, "cus": 64, "gfx": "gfx1201", "row": 16, "vram_bytes": 34_208_743_424},
    "mi325x-vf": {"devices": 1, "cus": 304, "gfx": "gfx942", "vram_bytes": 274_542_362_624},
}


@pytest.mark.parametrize("machine", KNOWN)
def test_a_machine_file_serves(machine, start_agent):
    """`gpulease devices --json` on the machine gives its known values under unique keys, all healthy."""
    node = start_agent(machine)
    done = node.gpulease("devices", "--json")
    assert done.returncode == 0, done.stderr
    devices = json.loads(done.stdout)["devices"]
    known = dict(KNOWN[machine])
    assert len(devices) == known.pop("devices")
    assert len({one["device"] for one in devices}) == len(devices)
    for device in devices:
        assert device["state"] == "healthy", device["reason"]
        assert {name: device[name] for name in known} == known


def test_a_run_on_a_partition(start_agent):
    """A whole partition is unmasked, and named by index where its UUID is not its own."""
    node = start_agent("mi300x-cpx")
    script = "echo $ROCR_VISIBLE_DEVICES ${HSA_CU_MASK-unmasked}"
    done = node.gpulease("run", "--cu", "100%", "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    visible, mask = done.stdout.split()
    assert visible.isdigit() and mask == "unmasked"
