"""The ledger: what is held, by whom, until when. The one owner of the database, and its one writer."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine

from nodeagent.domain.clock import Clock
from nodeagent.domain.errors import AgentError, LedgerUnavailable
from nodeagent.domain.lease import HeldSlice, Lease, LeaseState
from nodeagent.domain.records import Drain, LedgerHealth
from nodeagent.ledger import checks
from nodeagent.ledger.engine import Lock, connect, engine
from nodeagent.ledger.faults import Damaged, DiskFull, translated
from nodeagent.ledger.files import others_may_write
from nodeagent.ledger.ids import IdBlocks
from nodeagent.ledger.migrate import migrate
from nodeagent.ledger.present import Present, Writers
from nodeagent.ledger.queries import Queries
from nodeagent.ledger.reserve import Reserve
from nodeagent.ledger.transaction import Transaction

WAIT_SECONDS = 5.0


class Ledger(Queries):
    """Reads never wait for the writer: they have connections of their own, or are of leases in memory.

    Beside the database lie ``ids`` (the ids' high-water mark) and ``reserve`` (disk space for releases).
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        lock: Lock | None = None,
        begin: str = "BEGIN IMMEDIATE",
        reserve: Reserve | None = None,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._path = path
        self._clock = clock
        self._lock: Lock = threading.Lock() if lock is None else lock
        self._begin = begin
        self._reserve = reserve or Reserve(path.with_name("reserve"))
        self._wait_seconds = wait_seconds
        self._ids = IdBlocks(path.with_name("ids"))
        self._writer: Engine | None = None
        self._reader: Engine | None = None
        self._present: Present | None = None  # of the last commit; None: not known, so the rows are read
        self._writers = Writers()
        self._trouble: str | None = "the ledger is not open"
        self._passing = False  # the trouble may pass without a restart, so writers look again

    def open(self, *, floor: int = 0) -> None:
        """Migrate, check and open the database; ids start above *floor*. Call it after the fork.

        Never raises for a damaged, unreadable or newer database: `health` says so, and `write` refuses.
        """
        self.close()
        self._ids.start(floor)
        self._writer = engine(self._path, begin=self._begin)
        self._reader = engine(self._path, begin="BEGIN", read_only=True)
        self._start()

    def _start(self) -> None:
        try:
            _prepare(self._path.parent)
            self._reserve.spend_if_needed()
            migrate(self._path)
            self._trouble, self._passing = None, False
            self.check()
        except (AgentError, OSError) as error:
            self._trouble = str(error)
            self._passing = isinstance(error, DiskFull)

    def close(self) -> None:
        for each in (self._reader, self._writer):
            if each is not None:
                each.dispose()
        self._reader = self._writer = self._present = None
        self._writers = Writers()
        self._passing = False
        self._trouble = "the ledger is not open"

    def reopen(self) -> None:
        """Try again to open it where what was in the way may have passed; raises what `write` does.

        Every write does so, too. But without a schema nothing can be read, and so nobody comes to write.
        """
        if self._passing:
            with self.write(release=True):
                pass

    def held(self) -> tuple[HeldSlice, ...]:
        known = self._present
        return super().held() if known is None else known.held

    def live(self, state: LeaseState | None = None) -> tuple[Lease, ...]:
        known = self._present
        if known is None:
            return super().live(state)
        return tuple(lease for lease in known.live if state in (None, lease.state))

    def drains(self) -> tuple[Drain, ...]:
        known = self._present
        return super().drains() if known is None else known.drains

    def present(self) -> frozenset[int]:
        known = self._present
        return super().present() if known is None else frozenset(known.leases)

    def lease(self, lease_id: int) -> Lease | None:
        known = self._present
        return (known and known.leases.get(lease_id)) or super().lease(lease_id)

    def _in_memory(self, of: Collection[int]) -> Mapping[int, Lease]:
        known = self._present
        return {} if known is None else {one: known.leases[one] for one in of if one in known.leases}

    def health(self) -> LedgerHealth:
        trouble = self._trouble or self._reserve.trouble()
        return LedgerHealth(trouble is None, trouble)

    def check(self) -> tuple[str, ...]:
        """Check the whole database; a problem makes the ledger read-only until it is opened again.

        Unless it is one of the disk, which may pass.
        """
        passing = False
        try:
            with translated(self._path), closing(connect(self._path)) as connection:
                found = checks.problems(connection)
        except LedgerUnavailable as error:
            found, passing = (str(error),), isinstance(error, DiskFull)
        if found:
            self._trouble, self._passing = f"{self._path}: {'; '.join(found[:3])}", passing
        return found

    @contextmanager
    def write(self, *, release: bool = False) -> Iterator[Transaction]:
        """One transaction: committed at the end, undone by an exception.

        *release* marks one that serves leases which exist (release, reap, renew, attach): it works on a
        full disk too. If space ends within it, the reserve is given up and trying again succeeds.

        Raises:
            LedgerUnavailable: read-only, full, damaged, or the writer was busy for 5 s.
            LedgerConflict: something is held already, or over a limit.
            IllegalMove: a state that cannot be reached from here.
        """
        if not self._lock.acquire(timeout=self._wait_seconds):
            raise LedgerUnavailable("the ledger's writer is busy; try again")
        try:
            writer = self._ready(release)
            with translated(self._path), writer.begin() as connection:
                if self._writers.others_wrote(connection):
                    self._present = None  # also for those that come next, if this one is undone
                transaction = Transaction(connection, self._clock, self._ids, self._path, self._present)
                yield transaction
                present = transaction.present_after()
                self._present = None  # of a commit that fails nobody knows what came of it
            self._present = present
        except DiskFull:
            if release:
                self._reserve.spend()
            raise
        except Damaged as error:
            self._trouble = str(error)
            raise
        finally:
            self._lock.release()

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        reader = self._reader
        if reader is None:
            raise LedgerUnavailable("the ledger is not open")
        try:
            with translated(self._path), reader.begin() as connection:
                yield connection
        except Damaged as error:
            self._trouble = str(error)
            raise

    def _ready(self, release: bool) -> Engine:
        if self._passing:
            self._start()
        if self._writer is None or self._trouble is not None:
            raise LedgerUnavailable(self._trouble or "the ledger is not open")
        if release:
            self._reserve.spend_if_needed()
        else:
            self._reserve.demand()
        return self._writer


def _prepare(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if others_may_write(directory):
        raise LedgerUnavailable(f"{directory}: others can write here: chmod 0700 it, or choose another")
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        raise LedgerUnavailable(f"{directory}: not writable by uid {os.geteuid()}")
