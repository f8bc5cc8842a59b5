"""Make hard links of the files below the directory given that are the same, name and content."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path


def main() -> None:
    seen: dict[tuple[str, int, str], Path] = {}
    for path in sorted(Path(sys.argv[1]).rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        content = path.read_bytes()
        key = (path.name, path.stat().st_mode, hashlib.sha256(content).hexdigest())
        if (first := seen.setdefault(key, path)) is not path:
            path.unlink()
            os.link(first, path)


if __name__ == "__main__":
    main()
