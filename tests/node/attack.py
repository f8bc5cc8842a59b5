"""Try to take more VRAM than a lease has, by each path that the node allows, from inside the lease.

usage: attack.py GPU_ID:RENDER_MINOR:BYTES…

Takes BYTES on each device, by each path, and gives back at once what it got. Prints one JSON object: device,
then path, then "refused", "taken" or why the path does not exist here. Standard library only, any Python 3:
it runs as other users.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import struct
import subprocess
import sys

KFD, RENDER = "/dev/kfd", "/dev/dri/renderD%d"
ALLOC, FREE, ACQUIRE = 0xC0284B16, 0x40084B17, 0x40084B15
GEM_CREATE, GEM_CLOSE = 0xC0206440, 0x40086409
SYS_IOCTL = 16  # x86-64
ODD_SIZE = 0x4B16  # KFD looks at the number alone
VRAM, WRITABLE, PUBLIC = 1, 1 << 31, 1 << 29
VA = 0x7F0000000000

libc = ctypes.CDLL(None, use_errno=True)


def library(fd: int, request: int, argument: ctypes.Array[ctypes.c_char]) -> int:
    """As most programs do: the C library's ioctl, or whatever stands before it."""
    return 0 if libc.ioctl(fd, ctypes.c_ulong(request), argument) == 0 else ctypes.get_errno()


def system_call(fd: int, request: int, argument: ctypes.Array[ctypes.c_char]) -> int:
    """Past every library."""
    result = libc.syscall(ctypes.c_long(SYS_IOCTL), fd, ctypes.c_ulong(request), argument)
    return 0 if result == 0 else ctypes.get_errno()


CALLS = {"library": library, "system call": system_call}


def kfd(call: str, gpu_id: int, minor: int, size: int, request: int = ALLOC) -> str:
    """Allocate through KFD."""
    ask = CALLS[call]
    try:
        device, render = os.open(KFD, os.O_RDWR), os.open(RENDER % minor, os.O_RDWR)
    except OSError as fault:
        return f"no way in: {errno.errorcode[fault.errno or 0]}"
    ask(device, ACQUIRE, ctypes.create_string_buffer(struct.pack("<II", render, gpu_id), 8))
    packed = struct.pack("<QQQQII", VA, size, 0, 0, gpu_id, VRAM | WRITABLE | PUBLIC)
    argument = ctypes.create_string_buffer(packed, len(packed))
    number = ask(device, request, argument)
    if number:
        return _refusal(number)
    handle = ctypes.create_string_buffer(argument.raw[16:24], 8)
    ask(device, FREE, handle)
    return "taken"


def gem(call: str, gpu_id: int, minor: int, size: int) -> str:
    """Allocate through the render node, as graphics do."""
    ask = CALLS[call]
    try:
        render = os.open(RENDER % minor, os.O_RDWR)
    except OSError as fault:
        return f"no way in: {errno.errorcode[fault.errno or 0]}"
    argument = ctypes.create_string_buffer(struct.pack("<QQQQ", size, 4096, 4, 0), 32)
    number = ask(render, GEM_CREATE, argument)
    if number:
        return _refusal(number)
    ask(render, GEM_CLOSE, ctypes.create_string_buffer(argument.raw[:4] + bytes(4), 8))
    return "taken"


PATHS = {
    "kfd by the library": lambda *device: kfd("library", *device),
    "kfd by a system call": lambda *device: kfd("system call", *device),
    "kfd by an odd request": lambda *device: kfd("library", *device, request=ODD_SIZE),
    "kfd without the environment": lambda *device: _bare("kfd by the library", device),
    "gem by the library": lambda *device: gem("library", *device),
    "gem by a system call": lambda *device: gem("system call", *device),
}


def attempt(path: str, device: tuple[int, int, int]) -> str:
    """One path in a process of its own: an opened KFD is the process's until it ends."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, PATHS[path](*device).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as report:
        outcome = report.read()
    os.waitpid(child, 0)
    return outcome or "ended"


def _bare(path: str, device: tuple[int, ...]) -> str:
    """The same with nothing in the environment, as after ``env -i``."""
    words = [sys.executable, "-I", __file__, "--only", path, ":".join(map(str, device))]
    done = subprocess.run(words, env={}, stdout=subprocess.PIPE, check=False)
    answer = json.loads(done.stdout or b"{}")
    return str(next(iter(answer.values()), {}).get(path, "ended"))


def _refusal(number: int) -> str:
    if number == errno.ENOMEM:
        return "refused"
    return f"failed: {errno.errorcode.get(number, number)}"


def main() -> None:
    """Attack every device that is named."""
    words = sys.argv[1:]
    paths = list(PATHS)
    if words[:1] == ["--only"]:
        paths, words = [words[1]], words[2:]
    found = {}
    for word in words:
        gpu_id, minor, size = map(int, word.split(":"))
        found[word] = {path: attempt(path, (gpu_id, minor, size)) for path in paths}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
