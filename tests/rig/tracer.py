"""Make a process write(2) by ptrace: `tracer.py PID DESCRIPTOR TEXT`, in a guest, as whom you like.

Stops PID where it waits in a system call, has it write TEXT to its own DESCRIPTOR, and lets it go on where it
was. Says ``ok`` or the errno's name, of the traced process's call. x86-64, standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys

POKEDATA, SINGLESTEP, GETREGS, SETREGS, ATTACH, DETACH = 5, 9, 12, 13, 16, 17
SYS_WRITE = 1
SYSCALL_BYTES = 2  # 0f 05, before which the stopped process is put
RED_ZONE = 512  # and some: below the stack pointer, where nobody keeps anything
WORD = 8
# struct user_regs_struct
NAMES = (
    "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs_base gs_base"
)
REGISTERS = (*NAMES.split(), "ds", "es", "fs", "gs")

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


class Registers(ctypes.Structure):
    """As PTRACE_GETREGS gives them."""

    _fields_ = [(name, ctypes.c_ulong) for name in REGISTERS]


def ptrace(request: int, pid: int, address: int = 0, data: object = None) -> None:
    if libc.ptrace(request, pid, address, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace {request}: {os.strerror(number)}")


def write_in(pid: int, descriptor: int, text: bytes) -> int:
    """What the stopped process's write(2) came to: a count, or a negative errno."""
    before, ours = Registers(), Registers()
    ptrace(GETREGS, pid, 0, ctypes.byref(before))
    ptrace(GETREGS, pid, 0, ctypes.byref(ours))
    address = (before.rsp - RED_ZONE) // WORD * WORD
    padded = text + bytes(-len(text) % WORD)
    for offset in range(0, len(padded), WORD):
        ptrace(POKEDATA, pid, address + offset, int.from_bytes(padded[offset : offset + WORD], sys.byteorder))
    ours.rip -= SYSCALL_BYTES
    ours.rax, ours.rdi, ours.rsi, ours.rdx = SYS_WRITE, descriptor, address, len(text)
    ours.orig_rax = ctypes.c_ulong(-1).value  # no call that would be begun again
    ptrace(SETREGS, pid, 0, ctypes.byref(ours))
    ptrace(SINGLESTEP, pid)
    os.waitpid(pid, 0)
    ptrace(GETREGS, pid, 0, ctypes.byref(ours))
    ptrace(SETREGS, pid, 0, ctypes.byref(before))
    return ctypes.c_long(ours.rax).value


def main() -> None:
    pid, descriptor, text = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
    ptrace(ATTACH, pid)
    os.waitpid(pid, 0)
    result = write_in(pid, descriptor, text)
    ptrace(DETACH, pid)
    print("ok" if result >= 0 else errno.errorcode[-result])


if __name__ == "__main__":
    main()
