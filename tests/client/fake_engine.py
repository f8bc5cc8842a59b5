"""An engine's client that starts nothing: it has images in a directory, and writes down how it was called.

Run by the tests as ``docker`` or ``podman``; its directory is the one that its program lies in.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
import time
from pathlib import Path

HOME = Path(sys.argv[0]).absolute().parent
CONTAINER = "c0ffee"


def main(words: list[str]) -> int:
    with (HOME / "calls").open("a", encoding="utf-8") as log:
        log.write(json.dumps({"words": list(map(read, words)), "environment": dict(os.environ)}) + "\n")
    while words and words[0].startswith("-"):  # the tests write --option=value before the command
        words = words[1:]
    command = " ".join(words[:2]) if words[0] == "image" else words[0]
    own = {"image inspect": inspect, "pull": pull, "cp": copy, "rm": lambda _: 0}
    if words[-1] == "gpulease" and command == "create":
        print(CONTAINER)
        return 0
    return own[command](words) if command in own else start()


def read(word: str) -> str:
    """*word*, with what the file says in the place of its name where it names one with labels."""
    option, _, path = word.partition("=")
    return f"{option}: {Path(path).read_text(encoding='utf-8')}" if option == "--label-file" else word


def start() -> int:
    profile = next((word.partition("seccomp=")[2] for word in sys.argv if "seccomp=" in word), None)
    print("started" if profile is None else Path(profile).read_text(encoding="utf-8"))
    return int((HOME / "exit").read_text(encoding="utf-8"))


def images() -> dict[str, object]:
    return json.loads((HOME / "images").read_text(encoding="utf-8"))


def inspect(words: list[str]) -> int:
    found = images().get(words[2])
    print(json.dumps([found] if found else []))
    return 0 if found else 1


def pull(words: list[str]) -> int:
    print("pulling")
    registry = json.loads((HOME / "registry").read_text(encoding="utf-8"))
    if words[-1] not in registry:
        return 1
    (HOME / "images").write_text(json.dumps({**images(), words[-1]: registry[words[-1]]}), encoding="utf-8")
    return 0


def copy(words: list[str]) -> int:
    if (HOME / "slow").exists():
        time.sleep(60)
    path = HOME / "root" / words[1].partition(":")[2].lstrip("/")
    if not path.is_symlink() and not path.exists():
        return 1
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as tar:
        tar.add(path, path.name, recursive=False)
    return 0


if __name__ == "__main__":
    sys.stdout = io.TextIOWrapper(sys.stdout.buffer, write_through=True)
    sys.exit(main(sys.argv[1:]))
