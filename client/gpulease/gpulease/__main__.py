"""``python -m gpulease``."""

from __future__ import annotations

import sys

from gpulease.cli import main

if __name__ == "__main__":
    sys.exit(main())
