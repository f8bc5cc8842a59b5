"""Run by a test as a process: grant and release until killed, telling each after its commit."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import ledger_builders as build
from ledger_builders import OTHER, opened, placed, released

from nodeagent.ledger.ledger import Ledger


def main() -> None:
    ledger = Ledger(Path(sys.argv[1]), build.TurnedClock())
    ledger.open()
    with ledger.write() as tx:
        tx.register([build.device(), build.device(OTHER)], [build.pool()])
    while True:
        with ledger.write() as tx:
            lease = opened(tx, placed("0-3"), placed("0-3", device=OTHER))
        print("granted", lease, flush=True)
        with ledger.write(release=True) as tx:
            released(tx, lease)
        print("released", lease, flush=True)


if __name__ == "__main__":
    main()
