"""`gpulease run` for slices that differ, which have no options: python -m tests.rocm.slices BODY COMMAND…

BODY is that of POST /v1/leases.
"""

from __future__ import annotations

import json
import sys

from gpulease.client import Client
from gpulease.run import Runner
from gpulease.screen import Screen

if __name__ == "__main__":
    sys.exit(Runner(Client(), Screen(sys.stderr)).run(sys.argv[2:], json.loads(sys.argv[1])))
