"""Makes a process warm: its children need not compile the agent's SQL anew, a third of what they would do."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

from nodeagent.ledger import engine

from .subject import Verbs, prepare_next_version
from .world import NEXT_MIGRATIONS, World

_MOST_STATEMENTS = 2000


def share_statements() -> None:
    """From here on all engines keep compiled statements in one cache, which knows dialects by their type."""
    cache: Any = LRUCache(_MOST_STATEMENTS)
    create = engine.create_engine

    def sharing(*given: Any, **named: Any) -> Engine:
        made = create(*given, **named)
        made._compiled_cache = cache
        return made

    engine.create_engine = sharing
    dialect: Any = SQLiteDialect_pysqlite
    dialect.__hash__ = lambda self: hash(type(self))
    dialect.__eq__ = lambda self, other: type(self) is type(other)


def warm_up(tools: Path) -> None:
    """Live one agent's life in this very process, untraced."""
    share_statements()
    prepare_next_version(NEXT_MIGRATIONS)
    world = World(tools, keeps=False, real_time=False)
    try:
        built = world.build()
        verbs, pid = Verbs(built), world.holder(1000).pid
        verbs.start()
        lease = verbs.grant(
            uid=1000, pid=pid, anchor="cgroup", ttl=60, request_id="warm", cus=8, vram_bytes=1 << 30
        )["id"]
        verbs.attach(uid=1000, pid=pid, lease=lease)
        verbs.renew(uid=1000, lease=lease, ttl=60)
        verbs.release(uid=1000, lease=lease)
        verbs.backup(state=str(world.state), target=str(world.state / "backup"))
        verbs.start()
        verbs.reconcile()
        built.stop()
    finally:
        world.close()
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join()  # a process with threads is not to be forked
    gc.collect()
    gc.freeze()  # so that a child's collector does not write to every page that it shares
