"""The seccomp profile of supervised containers: an engine's usual one, but that ioctls are asked about.

``--security-opt seccomp=`` takes the place of the engine's own profile, so this one refuses what those do.
Its format is the engines' (OCI runtime specification, config-linux.md, with docker's ``archMap`` and
``includes``). What an ioctl asks for, and of which file, the supervisor finds out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nodeagent.domain.container import Engine
from nodeagent.domain.seccomp_calls import BY_CAPABILITY, PLAIN, UNKNOWN

# As nodeagent/hook/supervisor_filter.c: KFD by the low byte, whatever the others are; DRM with its type.
KFD = (0x02, 0x07, 0x16, 0x1A, 0x20, 0x22, 0x24, 0x27, 0x81)
DRM = (0x6440, 0x6450, 0x64B2)

# The first that hand listenerPath on (moby 42604, containers/common 945). Older ones drop it, and then their
# runtime does not start the container.
LEAST_VERSIONS = {Engine.DOCKER: (23, 0), Engine.PODMAN: (4, 1)}

_BYTE = 8
_EPERM, _ENOSYS = 1, 38
_NAMESPACES = 0x7E020000  # sched.h: every CLONE_NEW* that clone() takes
_VSOCK = 40  # socket.h: AF_VSOCK, the machine's host
_PERSONALITIES = (
    0x0,
    0x8,
    0x20000,
    0x20008,
    0xFFFFFFFF,
)  # personality.h: Linux, 2.6 by name, 32 bits; the last asks
_ALLOW, _NOTIFY, _ERRNO = "SCMP_ACT_ALLOW", "SCMP_ACT_NOTIFY", "SCMP_ACT_ERRNO"
_EQUAL, _UNEQUAL, _MASKED = "SCMP_CMP_EQ", "SCMP_CMP_NE", "SCMP_CMP_MASKED_EQ"

Rule = Mapping[str, Any]


def why_not(engine: Engine, version: str | None) -> str | None:
    """Why *engine*, which says that it is *version*, cannot have its containers supervised; or None."""
    least = LEAST_VERSIONS.get(engine)
    if least is None:
        return f"{engine} cannot be asked what it can do"
    if version is None:
        return f"{engine} does not answer, so what it can do is not known"
    if _numbers(version) >= least:
        return None
    return f"{engine} {version} knows no seccomp listener: {'.'.join(map(str, least))} or newer does"


def profile(listener: str) -> dict[str, Any]:
    """The profile whose listeners go to the socket at the path *listener*."""
    return {
        "defaultAction": _ERRNO,
        "defaultErrnoRet": _EPERM,
        "archMap": [
            {
                "architecture": "SCMP_ARCH_X86_64",
                "subArchitectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"],
            }
        ],
        "listenerPath": listener,
        "syscalls": [*_asked(), *_usual()],
    }


def _usual() -> Iterator[Rule]:
    yield _rule(_ALLOW, PLAIN)
    yield {**_rule(_ERRNO, UNKNOWN), "errnoRet": _ENOSYS}
    yield _rule(_ALLOW, ["clone"], _masked(0, _NAMESPACES, 0))
    yield _rule(_ALLOW, ["socket"], {"index": 0, "value": _VSOCK, "op": _UNEQUAL})
    for value in _PERSONALITIES:
        yield _rule(_ALLOW, ["personality"], {"index": 0, "value": value, "op": _EQUAL})
    for capability, names in BY_CAPABILITY.items():
        yield {**_rule(_ALLOW, names), "includes": {"caps": [capability]}}


def _asked() -> Iterator[Rule]:
    """The ioctls that are asked about, and all others: a rule for all would win over those for some."""
    for number in KFD:
        yield _ioctl(_NOTIFY, number, 0xFF)
    for number in DRM:
        yield _ioctl(_NOTIFY, number, 0xFFFF)
    low = {number & 0xFF for number in DRM}
    for value, mask in all_but({*KFD, *low}):
        yield _ioctl(_ALLOW, value, mask)
    for number in DRM:
        for value, mask in all_but({number >> _BYTE}):
            yield _ioctl(_ALLOW, value << _BYTE | number & 0xFF, mask << _BYTE | 0xFF)


def all_but(left_out: Iterable[int], prefix: int = 0, bits: int = 0) -> Iterator[tuple[int, int]]:
    """Values and masks for every byte but those *left_out*; of those whose upper *bits* are *prefix*."""
    within = [one for one in left_out if one >> (_BYTE - bits) == prefix]
    if not within:
        yield prefix << (_BYTE - bits), 0xFF << (_BYTE - bits) & 0xFF
    elif bits < _BYTE:
        yield from all_but(within, prefix << 1, bits + 1)
        yield from all_but(within, prefix << 1 | 1, bits + 1)


def _ioctl(action: str, value: int, mask: int) -> Rule:
    return _rule(action, ["ioctl"], _masked(1, mask, value))


def _masked(index: int, mask: int, value: int) -> Rule:
    return {"index": index, "value": mask, "valueTwo": value, "op": _MASKED}


def _rule(action: str, names: Iterable[str], *arguments: Rule) -> dict[str, Any]:
    return {"names": sorted(names), "action": action, **({"args": list(arguments)} if arguments else {})}


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers that *version* begins with: of ``26.1.5+dfsg1`` 26 and 1."""
    first, _, rest = version.partition(".")
    second = rest.partition(".")[0]
    return tuple(int(one) if one.isascii() and one.isdecimal() else 0 for one in (first, second))
