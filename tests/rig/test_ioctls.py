"""fakegpu's ioctls: what the agent's own probe and any program's own calls come to under a lease's limit."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import sys
from pathlib import Path

import pytest

from nodeagent.adapters.selftest import SelfTest
from tests.node import attack
from tests.rig.ways import within
from tests.rig.wired import command

pytestmark = pytest.mark.rig

MIB = 1 << 20
AVAILABLE = 0xC0104B23  # _IOWR('K', 0x23, 16): u64 available; u32 gpu_id, pad


def attacked(cgroup: Path, gpu, size: int) -> str:
    """What an allocation through KFD comes to in *cgroup*, as a program makes it."""
    target = (attack.__file__, "--only", "/dev", str(gpu.gpu_id), str(gpu.minor), str(size))
    return command(*within(cgroup, sys.executable, *target))


def test_the_agent_s_own_probe_proves_the_limits(rig):
    """Charged as far as it fits and refused beyond, through KFD, as on a card."""
    gpu = rig.gpus[0]
    assert SelfTest(rig.tree, rig.dmem).run(gpu.region, str(gpu.node), gpu.gpu_id) is None


def test_the_self_test_sees_a_card_that_is_another(rig):
    """A render node that is not the GPU's proves nothing of its region."""
    one, other = rig.gpus[:2]
    why = SelfTest(rig.tree, rig.dmem).run(one.region, str(other.node), other.gpu_id)
    assert why is not None and "0 were charged" in why


def test_a_program_s_own_calls_meet_the_limit(rig):
    """What fits is had, and given back with the process; what does not is ENOMEM."""
    gpu, lease = rig.gpus[0], rig.lease(1)
    rig.dmem.limit(lease, gpu.region, 64 * MIB)
    assert attacked(rig.directory(lease), gpu, 64 * MIB) == "taken"
    assert attacked(rig.directory(lease), gpu, 64 * MIB + 4096) == "refused"
    assert rig.charged(lease, gpu) == 0


def test_kfd_tells_the_whole_card_to_everybody(rig):
    """AVAILABLE_MEMORY knows no limit: that the slice is told is the hook's doing."""
    gpu = rig.gpus[0]
    kfd = os.open("/dev/kfd", os.O_RDWR)
    try:
        answer = fcntl.ioctl(kfd, AVAILABLE, struct.pack("=QII", 0, gpu.gpu_id, 0))
        assert struct.unpack("=QII", answer)[0] == gpu.size
    finally:
        os.close(kfd)


def test_a_gpu_is_allocated_on_once_its_render_node_was_shown(rig):
    """As in KFD: ENODEV before, and EINVAL for another GPU's node."""
    gpu, other = rig.gpus[:2]
    kfd, render = os.open("/dev/kfd", os.O_RDWR), os.open(other.node, os.O_RDWR)
    alloc = struct.pack("=QQQQII", attack.VA, 4096, 0, 0, gpu.gpu_id, attack.VRAM)
    try:
        with pytest.raises(OSError, match=os.strerror(errno.ENODEV)):
            fcntl.ioctl(kfd, ctypes.c_int(attack.ALLOC).value, alloc)
        with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
            fcntl.ioctl(kfd, attack.ACQUIRE, struct.pack("=II", render, gpu.gpu_id))
    finally:
        os.close(render)
        os.close(kfd)
