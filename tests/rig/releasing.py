"""An agent that is to be killed in the middle of a release: `python -m tests.rig.releasing DIRECTORY LEASE`.

Starts on the state directory, begins to release the lease, says "begun", and goes on until it is killed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from nodeagent import config as settings
from tests.rig.wired import Wired

TERMS = settings.Release(timeout_seconds=20, retry_seconds=3600, grace_seconds=1)


def main(directory: Path, lease: int) -> None:
    """Never ends by itself."""
    made = Wired(directory, release=TERMS, enabled=False)
    made.begin_release(lease)
    print("begun", flush=True)
    time.sleep(3600)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
