"""DRM clients, read from copied /proc trees in the kernel's own format."""

from __future__ import annotations

from pathlib import Path

from nodeagent.adapters.fdinfo import drm_clients

MIB = 1 << 20
INFO = """pos:\t0
flags:\t02100002
drm-driver:\tamdgpu
drm-client-id:\t{client}
drm-pdev:\t0000:c1:00.0
pasid:\t32771
drm-total-vram:\t9000 KiB
drm-shared-vram:\t1024 KiB
drm-resident-vram:\t8 MiB
drm-memory-vram:\t8192 KiB
drm-engine-gfx:\t400 ns
drm-engine-capacity-gfx:\t2
drm-engine-compute:\t20 ns
"""


def opened(proc: Path, pid: int, fd: int, info: str, target: str = "/dev/dri/renderD128") -> None:
    (proc / str(pid) / "fd").mkdir(parents=True, exist_ok=True)
    (proc / str(pid) / "fdinfo").mkdir(exist_ok=True)
    (proc / str(pid) / "fd" / str(fd)).symlink_to(target)
    (proc / str(pid) / "fdinfo" / str(fd)).write_text(info)


def test_a_client_in_bytes_and_nanoseconds(tmp_path: Path) -> None:
    """Units are the kernel's; engines add up, their capacities are no time."""
    opened(tmp_path, 42, 5, INFO.format(client=7))
    (client,) = drm_clients(tmp_path)
    assert (client.pids, client.pci, client.minor, client.client) == ({42}, "0000:c1:00.0", 128, 7)
    assert (client.resident_bytes, client.shared_bytes, client.engine_ns) == (8 * MIB, MIB, 420)


def test_a_client_counts_once(tmp_path: Path) -> None:
    """Duplicates of one open, in one process or several, are one client; another id is another."""
    for pid, fd, client in ((42, 5, 7), (42, 6, 7), (43, 5, 7), (43, 6, 8)):
        opened(tmp_path, pid, fd, INFO.format(client=client))
    assert {(one.client, one.pids) for one in drm_clients(tmp_path)} == {
        (7, frozenset({42, 43})),
        (8, frozenset({43})),
    }


def test_one_id_on_two_cards_is_two_clients(tmp_path: Path) -> None:
    """Ids count for each device by itself."""
    opened(tmp_path, 42, 5, INFO.format(client=7))
    opened(tmp_path, 42, 6, INFO.format(client=7).replace("c1", "c2"), "/dev/dri/renderD129")
    assert len(drm_clients(tmp_path)) == 2


def test_an_old_kernel_tells_memory_only(tmp_path: Path) -> None:
    """Before drm-resident there was drm-memory, and no word of what is shared."""
    opened(tmp_path, 42, 5, "drm-driver: amdgpu\ndrm-client-id: 7\ndrm-memory-vram: 64 KiB\n")
    (client,) = drm_clients(tmp_path)
    assert (client.pci, client.resident_bytes, client.shared_bytes) == (None, 64 << 10, None)


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    """Other drivers, other files, and a user's file that is called like a node."""
    opened(tmp_path, 42, 5, INFO.format(client=7).replace("amdgpu", "i915"))
    opened(tmp_path, 42, 6, INFO.format(client=8), "/dev/null")
    opened(tmp_path, 42, 7, "pos: 0\n", "/srv/renderD128")
    assert drm_clients(tmp_path) == ()


def test_only_the_processes_that_are_asked_for(tmp_path: Path) -> None:
    """A second look at some processes reads no others, and none that has ended."""
    opened(tmp_path, 42, 5, INFO.format(client=7))
    opened(tmp_path, 43, 5, INFO.format(client=8))
    assert [one.client for one in drm_clients(tmp_path, {43, 44})] == [8]


def test_a_node_without_proc_has_no_clients(tmp_path: Path) -> None:
    """A simulated node has none."""
    assert drm_clients(tmp_path / "none") == ()


def test_this_machines_processes_can_be_read() -> None:
    """The real /proc, with processes that end meanwhile, raises nothing."""
    assert isinstance(drm_clients(Path("/proc")), tuple)
