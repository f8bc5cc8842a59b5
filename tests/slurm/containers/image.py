"""An image directory for containers in jobs: a small program for each C library, and places to mount at."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.hook.userland import floor

SOURCE = Path(__file__).with_name("take.c")
PLACES = ("bin", "dev", "proc", "sys", "tmp", "run/nodeagent/hook", "etc/gpulease", "mnt/0")
FILES = ("etc/passwd", "etc/group", "etc/hosts", "etc/resolv.conf", "etc/ld.so.preload")
# Where an image has each, and a Debian root.
LIBRARIES = {
    "lib64/ld-linux-x86-64.so.2": "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
    "lib/x86_64-linux-gnu/libc.so.6": "usr/lib/x86_64-linux-gnu/libc.so.6",
    "lib/ld-musl-x86_64.so.1": "usr/lib/x86_64-linux-musl/libc.so",
}


def make_image(image: Path, owner: int, root: Path = Path("/")) -> None:
    """Make it with the C libraries of a Debian *root*, and with the programs `glibc` and `musl`.

    *owner*: whose it is, a uid; podman writes into it.
    """
    for place in PLACES:
        (image / place).mkdir(parents=True)
    for name in FILES:
        (image / name).touch()
    for place, source in LIBRARIES.items():
        (image / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / source, image / place)
    _compile(image / "bin/glibc", "gcc", *floor(image))
    _compile(image / "bin/musl", "musl-gcc")
    subprocess.run(["chown", "-R", str(owner), image], check=True)


def _compile(program: Path, compiler: str, *flags: str) -> None:
    subprocess.run([compiler, "-O1", "-o", program, SOURCE, *flags], check=True)
