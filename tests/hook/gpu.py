"""A GPU program for the hook's tests, run by the system's Python: it evaluates the expressions on its stdin.

Answers are JSON lines; a failed ioctl answers its errno's name. ioctl() is looked up as a C program's is.
"""

import contextlib
import ctypes
import errno
import json
import mmap
import os
import signal
import struct
import sys
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)
kept = []
GPU, OTHER_GPU = 0x1000, 0x2000
VRAM, AQL = 1, 1 << 27
files = {}


def opened(name):
    if name not in files:
        files[name] = os.open(f"/dev/{name}", os.O_RDWR)
    return files[name]


def ioctl(fd, command, data):
    """The buffer as the kernel left it."""
    buffer = ctypes.create_string_buffer(bytes(data), len(data))
    if libc.ioctl(ctypes.c_int(fd), ctypes.c_ulong(command), buffer) < 0:
        raise OSError(ctypes.get_errno(), "ioctl")
    return buffer.raw


def alloc(size, gpu=GPU, flags=VRAM, command=0xC0284B16):
    """The handle."""
    data = struct.pack("<4Q2I", 0, size, 0, 0, gpu, flags)
    return struct.unpack_from("<Q", ioctl(opened("kfd"), command, data), 16)[0]


def free(handle):
    ioctl(opened("kfd"), 0x40084B17, struct.pack("<Q", handle))


def available(gpu=GPU):
    return struct.unpack_from("<Q", ioctl(opened("kfd"), 0xC0104B23, struct.pack("<QII", 0, gpu, 0)))[0]


def gem(size, domains=4, node="dri/renderD128"):
    data = struct.pack("<4Q", size, 0, domains, 0)
    return struct.unpack_from("<I", ioctl(opened(node), 0xC0206440, data))[0]


def gem_close(handle, node="dri/renderD128"):
    ioctl(opened(node), 0x40086409, struct.pack("<II", handle, 0))


def managed(size):
    """Address of new memory that is kept until `unmap`."""
    area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    kept.append(area)
    return ctypes.addressof(ctypes.c_char.from_buffer(area))


def unmap(address, size):
    libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))


def svm(address, size, *attributes):
    """Each attribute: (type, value)."""
    data = struct.pack("<QQII", address, size, 0, len(attributes))
    data += b"".join(struct.pack("<II", *one) for one in attributes)
    ioctl(opened("kfd"), 0xC0004B20 | len(data) << 16, data)


def queue(gpu=GPU, kind=2, priority=7):
    """The number."""
    data = bytearray(88)
    struct.pack_into("<IIII", data, 36, gpu, kind, 100, priority)
    return struct.unpack_from("<I", ioctl(opened("kfd"), 0xC0584B02, data), 52)[0]


def update(number, priority):
    """The priority that the program's own structure has afterwards."""
    left = ioctl(opened("kfd"), 0x40184B07, struct.pack("<QIIII", 0, number, 0, 100, priority))
    return struct.unpack_from("<I", left, 20)[0]


def mask(number, bits, words=4):
    raw = ctypes.create_string_buffer(bits.to_bytes(words * 4, "little"), words * 4)
    kept.append(raw)
    ioctl(opened("kfd"), 0x40104B1A, struct.pack("<IIQ", number, words * 32, ctypes.addressof(raw)))


def forbid(*calls):
    """A seccomp filter that kills at these system calls, as of a program that lists what it needs."""
    load, kill, allow = (0x20, 0, 0, 0), (0x06, 0, 0, 0x80000000), (0x06, 0, 0, 0x7FFF0000)
    steps = [load, *(step for call in calls for step in ((0x15, 0, 1, call), kill)), allow]
    program = b"".join(struct.pack("<HBBI", *step) for step in steps)
    raw = ctypes.create_string_buffer(program, len(program))
    filtered = ctypes.create_string_buffer(struct.pack("<H6xQ", len(program) // 8, ctypes.addressof(raw)), 16)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
    assert libc.prctl(22, 2, filtered, 0, 0) == 0


def fill(pipe):
    """Write until it takes no more."""
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, bytes(4096))


def close_files():
    """All but the three standard ones."""
    files.clear()
    os.closerange(3, 4096)


def linger():
    """Fork a child that may outlive us, for a minute at most; its pid."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        signal.pause()
    return child


def in_child(expression):
    """The answer of a fork child, which then ends."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        files.clear()
        os.write(writing, answer(expression).encode())
        os._exit(0)
    os.wait()
    return json.loads(os.read(reading, 4096))


def storm(rounds, size, threads=8):
    """Allocate and free from many threads; how often that was refused."""
    refused = []
    opened("kfd")

    def work(seed):
        held, state = [], seed
        for _ in range(rounds):
            state = (state * 1103515245 + 12345) & 0x7FFFFFFF
            if len(held) > 6 or (held and state >> 16 & 1):
                free(held.pop(0))
                continue
            try:
                held.append(alloc(size * (1 + (state >> 20) % 4)))
            except OSError:
                refused.append(1)
        for handle in held:
            free(handle)

    workers = [threading.Thread(target=work, args=(os.getpid() + seed,)) for seed in range(threads)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    return len(refused)


def signal_storm(rounds):
    """Allocate and free while a timer's handler does so, too."""

    def handler(*_):
        free(alloc(4096))

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    for _ in range(rounds):
        free(alloc(4096))
    signal.setitimer(signal.ITIMER_REAL, 0)


def until_free(size):
    """Allocate, waiting for the kernel to take back what the dead had."""
    for _ in range(100):
        try:
            return alloc(size)
        except OSError:
            time.sleep(0.1)
    return 0


def answer(expression):
    try:
        return json.dumps(eval(expression))
    except OSError as error:
        return json.dumps(errno.errorcode.get(error.errno, str(error)))


def execute():
    """Become this program anew."""
    os.execv(sys.executable, [sys.executable, *sys.argv, "again"])


if __name__ == "__main__":
    if "again" in sys.argv:
        print('"started"', flush=True)
    for line in sys.stdin:
        print(answer(line), flush=True)
