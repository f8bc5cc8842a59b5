"""Records of the kernel's log, as /dev/kmsg gives them."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from nodeagent.adapters.kernel_log import KernelLog, Line, Read, line_of
from nodeagent.domain.errors import OutsideFault

KERNEL = (
    b"3,1234,99887766,-;amdgpu 0000:c1:00.0: amdgpu: page fault\n SUBSYSTEM=pci\n DEVICE=+pci:0000:c1:00.0\n"
)


def test_a_kernels_record_has_its_device() -> None:
    """The text is the first line, and the device is what the kernel says below it."""
    assert line_of(KERNEL) == Line("amdgpu 0000:c1:00.0: amdgpu: page fault", "0000:c1:00.0")
    assert line_of(b"6,1,2,-,caller=T1;plain\n") == Line("plain", None)


@pytest.mark.parametrize(
    "record", [b"12,5,6,-;amdgpu: page fault\n", b"11,5,6,-;x\n", b"x", b"", b"3,1;y", b";"]
)
def test_what_programs_write_is_not_the_kernels(record: bytes) -> None:
    """A record of another facility, as whoever writes to the file gets, is left out; so is what is none."""
    assert line_of(record) is None


def test_what_is_no_text_does_no_harm() -> None:
    """Bytes that are no UTF-8 are replaced."""
    line = line_of(b"3,1,2,-;amdgpu \xff\xfe\n")
    assert line is not None and line.text.startswith("amdgpu ")


def test_a_log_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The fault names the file."""
    with pytest.raises(OutsideFault, match="none"):
        KernelLog(tmp_path / "none").open()


def test_nothing_is_waited_for() -> None:
    """A log in which nothing comes gives nothing, at once; one that was not opened, too."""
    reader, writer = os.pipe2(os.O_NONBLOCK)
    source = KernelLog()
    assert source.read() == Read((), lost=False)
    source._file = reader
    try:
        assert source.read() == Read((), lost=False)
        os.write(writer, KERNEL)
        assert [line.device for line in source.read().lines] == ["0000:c1:00.0"]
    finally:
        source.close()
        os.close(writer)


@pytest.mark.root
def test_the_log_is_read_on_by_the_next_process() -> None:
    """Lines that come while there is no worker are read by the next one, and none twice."""
    source = KernelLog()
    try:
        source.open()
        writer = os.open("/dev/kmsg", os.O_WRONLY)
    except (OutsideFault, OSError) as fault:
        pytest.skip(f"no kernel log here: {fault}")
    os.write(writer, b"<14>nodeagent: one\n")
    child = os.fork()
    if child == 0:
        source.open()
        read_until(source, b"nodeagent: one")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    os.write(writer, b"<14>nodeagent: two\n")
    os.close(writer)
    assert b"nodeagent: one" not in read_until(source, b"nodeagent: two")
    source.close()


def read_until(source: KernelLog, word: bytes) -> bytes:
    """All records, programs' too, up to one with *word*, which may be there a moment after its writing."""
    found = b""
    while word not in found:
        assert select.select([source._file], [], [], 20)[0]
        found += os.read(source._file or 0, 8192)
    return found


@pytest.mark.root
def test_the_real_log_is_read_from_now_on() -> None:
    """What root writes there comes with a facility of its own, and is not taken for the kernel's."""
    if not os.access("/dev/kmsg", os.R_OK | os.W_OK):
        pytest.skip("/dev/kmsg cannot be read or written here")
    source = KernelLog()
    source.open()
    try:
        Path("/dev/kmsg").write_text("amdgpu 0000:c1:00.0: amdgpu: page fault (a test of nodeagent)\n")
        assert not [line for line in source.read().lines if "a test of nodeagent" in line.text]
    finally:
        source.close()
