"""What the doctor gathers of the agent, its ledger, users and leftovers, from directories of a test's own."""

from __future__ import annotations

import socket
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from nodeagent import __version__
from nodeagent.adapters.clock import SystemClock
from nodeagent.config import Config, Idle
from nodeagent.doctor import own, using
from nodeagent.domain.doctor.check import Unseen
from nodeagent.ledger.ledger import Ledger
from nodeagent.ledger.migrate import NEWEST, migrate
from nodeagent.ledger.reader import LedgerReader


def test_the_agent_by_its_word_and_its_socket(node: Any) -> None:
    """Version and health are the agent's own; a socket that users cannot reach is trouble."""
    path = node.root / "run/api.sock"
    path.parent.mkdir(parents=True)
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(path))
        path.chmod(0o600)
        found = own.service(
            node.scene(ask=lambda target: {"version": "9"}, health=("well", 0), complaints=["x"])
        )
        assert (found.served, found.version, found.health, found.complaints) == (
            "9",
            __version__,
            ("well", 0),
            ("x",),
        )
        assert "600" in (found.socket_trouble or "")
        path.chmod(0o666)
        assert own.service(node.scene()).socket_trouble is None
        path.parent.chmod(0o777)
        assert "777" in (own.service(node.scene()).socket_trouble or "")


SYSTEMCTL = """#!/bin/sh
case "$4" in
nodeagent.service) printf 'LoadState=loaded\\nActiveState=failed\\nUnitFileState=enabled\\nNRestarts=3\\n' ;;
nodeagent.socket) printf 'LoadState=loaded\\nActiveState=active\\nUnitFileState=disabled\\nNRestarts=\\n' ;;
nodeagent-docker-plugin.socket) printf 'LoadState=loaded\\nActiveState=inactive\\nUnitFileState=disabled' ;;
*) printf 'LoadState=not-found\\nActiveState=inactive\\n' ;;
esac
"""


def test_the_units_that_are_installed(node: Any) -> None:
    """Each has its state, and the agent its restarts; docker's plugin is off where nobody wants it."""
    systemctl = node.write("systemctl", SYSTEMCTL)
    systemctl.chmod(0o755)
    units, restarts = own.units_of(str(systemctl))
    assert units == {"nodeagent.service": "failed, enabled", "nodeagent.socket": "active, disabled"}
    assert restarts == 3
    assert own.units_of(str(node.root / "none")) == ({}, 0)


def test_what_is_not_enforced(node: Any) -> None:
    """A bypass and kinds of holders that are only observed are known by the agent's word."""
    told = {
        "version": "9",
        "bypass": {"until": "20:00", "reason": "a rush", "seen": True},
        "modes": {"slurm": "observe", "docker": "enforce"},
    }
    found = own.service(node.scene(ask=lambda target: told))
    assert (found.bypass, found.observed) == ("until 20:00: a rush", ("slurm",))
    assert own.service(node.scene()).bypass is None


def test_a_ledger_that_is_not_there_yet(node: Any) -> None:
    """Before the first start there is nothing to read, and nothing wrong."""
    found = own.state(node.scene())
    assert (found.revision, found.unreadable, found.problems, found.trouble) == (None, None, (), None)
    assert set(found.free) == {str(node.state), str(node.root / "run"), str(node.root / "var/spool")}


def test_a_sound_ledger(node: Any) -> None:
    """It has this version's schema, no problems and nothing in quarantine; its directory is private."""
    migrate(node.state / "ledger.sqlite3")
    found = own.state(node.scene())
    assert (found.revision, found.newest, found.problems, found.quarantined) == (NEWEST, NEWEST, (), 0)
    node.state.chmod(0o755)
    assert "755" in (own.state(node.scene()).trouble or "")


def test_a_damaged_ledger(node: Any) -> None:
    """A file that is no database is a problem of the ledger, whoever looks."""
    (node.state / "ledger.sqlite3").write_bytes(b"no database at all" * 100)
    assert own.state(node.scene()).problems


def test_the_agent_is_not_waited_for(node: Any) -> None:
    """While the agent writes the ledger is read as it was before; the time for checking it is bounded."""
    path = node.state / "ledger.sqlite3"
    migrate(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO boots VALUES ('x', 1, 1.0)")
        assert own.state(node.scene()).problems == ()
        reader = LedgerReader(path, SystemClock())
        assert reader.present() == frozenset()
        assert reader.problems(seconds=-1) in (None, ())
        reader.close()
        writer.execute("COMMIT")


@pytest.mark.root
def test_what_is_left_of_leases(node: Any) -> None:
    """Files named for leases are found by kind; without a ledger none of them is a live lease's."""
    stem = node.scene().stem
    (node.root / "run/cdi").mkdir(parents=True)
    node.write(f"run/cdi/nodeagent-{stem}-12.json", "{}")
    node.write("run/cdi/nodeagent-gpulease_other-13.json", "{}")
    mount = node.cgroup2()
    (mount / f"{stem}.slice" / f"{stem}-14.slice").mkdir(parents=True)
    (mount / "gpulease_0123.slice/gpulease_0123-3.slice").mkdir(parents=True)
    (mount / "gpulease_4567.slice").mkdir()
    found = own.leftovers(node.scene())
    assert not isinstance(found, Unseen)
    assert (found.live, found.cdi, found.cgroups) == (frozenset(), {12}, {14})
    assert found.instances == ("gpulease_0123.slice",)


def test_leases_in_the_ledger_are_live(node: Any) -> None:
    """What the ledger holds is nobody's leftover, and its users are known."""
    ledger = Ledger(node.state / "ledger.sqlite3", SystemClock())
    ledger.open()
    ledger.close()
    found = own.leftovers(node.scene())
    assert not isinstance(found, Unseen) and found.live == frozenset()


def test_the_hooks_mounts(node: Any) -> None:
    """Small file systems below the hook's directory are listed as often as they are mounted."""
    point = "/run/nodeagent/hook/usage/0"
    line = f"40 1 0:50 / {point} rw - tmpfs gpulease rw\n"
    node.write("proc/self/mountinfo", line + line + "41 1 0:51 / /tmp rw - tmpfs tmpfs rw\n")
    found = own.leftovers(node.scene())
    assert not isinstance(found, Unseen) and found.mounts == (point, point)


def test_who_is_on_the_gpus(node: Any) -> None:
    """KFD's processes with memory and queues, the idle ones too, and VRAM against what is known of it."""
    node.is_a("r9700")
    device = node.scene().inventory.devices[0]
    kfd = "sys/class/kfd/kfd/proc"
    node.write(f"{kfd}/77/vram_{device.gpu_id}", str(4 << 30))
    node.write(f"{kfd}/77/stats_{device.gpu_id}/evicted_ms", "15")
    node.write(f"{kfd}/78/pasid", "0")
    node.write("proc/77/comm", "python3\n")
    node.write("proc/77/stat", "77 (python3) D 1 " + "0 " * 16 + "4242 0\n")
    node.write(f"sys/bus/pci/devices/{device.pci}/mem_info_vram_used", str(9 << 30))
    migrate(node.state / "ledger.sqlite3")
    found = using.usage(node.scene())
    busy, idle = found.users
    assert (busy.pid, busy.name, busy.vram_bytes, busy.evicted_ms, busy.state) == (
        77,
        "python3",
        4 << 30,
        15,
        "D",
    )
    assert (idle.pid, idle.vram_bytes, idle.queues) == (78, 0, 0)
    assert (busy.leased, idle.leased) == (False, False)
    (pool,) = (one for one in found.pools if one.pool == device.pci)
    assert (pool.used, pool.known, pool.idle) == (9 << 30, 4 << 30, None)


def test_devices_whose_waves_are_not_counted_are_told_where_that_matters(node: Any) -> None:
    """RDNA and further partitions, and only where idle leases are looked for."""
    node.is_a("r9700")
    scene = node.scene()
    assert using.usage(scene).blind == ()
    scene = node.scene(config=Config(idle=Idle(after_seconds=60)))
    (first, *_) = using.usage(scene).blind
    assert first == f"{scene.inventory.devices[0].key}: gfx1201 tells no cu_occupancy"


def test_without_the_ledger_nobody_is_called_foreign(node: Any) -> None:
    """Which process is in a lease is the ledger's to say; a guess would accuse the holders."""
    node.is_a("mi210")
    node.write("sys/class/kfd/kfd/proc/77/pasid", "0")
    (user,) = using.usage(node.scene()).users
    assert user.leased is None
