"""The first schema.

A migration never imports the tables or triggers of the code: it says what was true in its time.
"""

# ruff: noqa: E501 (the triggers stand as SQLite keeps them)

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TRIGGERS = (
    """CREATE TRIGGER leases_id_grows BEFORE INSERT ON leases WHEN NEW.id <= (SELECT lease FROM high_water)
BEGIN SELECT RAISE(ABORT, 'a lease id is never used again'); END""",
    """CREATE TRIGGER leases_high_water AFTER INSERT ON leases
BEGIN INSERT OR REPLACE INTO high_water VALUES (1, NEW.id); END""",
    """CREATE TRIGGER high_water_grows BEFORE UPDATE ON high_water WHEN NEW.lease < OLD.lease
BEGIN SELECT RAISE(ABORT, 'a lease id is never used again'); END""",
    """CREATE TRIGGER high_water_stays BEFORE DELETE ON high_water WHEN 1
BEGIN SELECT RAISE(ABORT, 'a lease id is never used again'); END""",
    """CREATE TRIGGER leases_keep_id BEFORE UPDATE OF id ON leases WHEN 1
BEGIN SELECT RAISE(ABORT, 'a lease keeps its id'); END""",
    """CREATE TRIGGER leases_begin BEFORE INSERT ON leases WHEN NEW.state NOT IN ('queued', 'preparing')
BEGIN SELECT RAISE(ABORT, 'illegal move: a lease begins queued or preparing'); END""",
    """CREATE TRIGGER leases_move BEFORE UPDATE OF state ON leases WHEN NOT ((OLD.state = 'active' AND NEW.state IN ('lost', 'releasing')) OR (OLD.state = 'lost' AND NEW.state IN ('releasing')) OR (OLD.state = 'preparing' AND NEW.state IN ('active', 'releasing')) OR (OLD.state = 'queued' AND NEW.state IN ('cancelled', 'preparing')) OR (OLD.state = 'releasing' AND NEW.state IN ('failed', 'released')))
BEGIN SELECT RAISE(ABORT, 'illegal move of a lease'); END""",
    """CREATE TRIGGER leases_active_hold BEFORE UPDATE OF state ON leases WHEN NEW.state = 'active' AND (NOT EXISTS (SELECT 1 FROM slices WHERE lease = NEW.id) OR EXISTS (SELECT 1 FROM slices AS s WHERE s.lease = NEW.id AND (s.state <> 'held'
    OR s.cu_count <> (SELECT count(*) FROM held_cus AS h WHERE h.device = s.device AND h.epoch = s.epoch
    AND h.slice IS CASE s.shared WHEN 1 THEN NULL ELSE s.id END))))
BEGIN SELECT RAISE(ABORT, 'illegal move: an active lease holds every CU of its slices'); END""",
    """CREATE TRIGGER leases_end_clean BEFORE UPDATE OF state ON leases WHEN NEW.ended_ns IS NOT NULL AND EXISTS (SELECT 1 FROM slices WHERE lease = NEW.id AND state IN ('held', 'cleaning'))
BEGIN SELECT RAISE(ABORT, 'illegal move: an ended lease holds no slice'); END""",
    """CREATE TRIGGER leases_released_free BEFORE UPDATE OF state ON leases WHEN NEW.state = 'released' AND EXISTS (SELECT 1 FROM slices WHERE lease = NEW.id AND state <> 'free')
BEGIN SELECT RAISE(ABORT, 'illegal move: a released lease has free slices only'); END""",
    """CREATE TRIGGER leases_delete_ended BEFORE DELETE ON leases WHEN OLD.ended_ns IS NULL OR EXISTS (SELECT 1 FROM slices WHERE lease = OLD.id AND slices.state <> 'free')
BEGIN SELECT RAISE(ABORT, 'a lease is kept until it ended and its slices are free'); END""",
    """CREATE TRIGGER slices_begin BEFORE INSERT ON slices WHEN NEW.state <> 'held' OR (SELECT state FROM leases WHERE id = NEW.lease) <> 'preparing'
BEGIN SELECT RAISE(ABORT, 'illegal move: a slice begins held, of a preparing lease'); END""",
    """CREATE TRIGGER slices_epoch BEFORE INSERT ON slices WHEN NEW.epoch <> (SELECT max(epoch) FROM devices WHERE key = NEW.device)
BEGIN SELECT RAISE(ABORT, 'the epoch of the device is over'); END""",
    """CREATE TRIGGER slices_pool BEFORE INSERT ON slices WHEN NEW.pool <> (SELECT pool FROM devices WHERE key = NEW.device AND epoch = NEW.epoch)
BEGIN SELECT RAISE(ABORT, 'the device draws on another pool'); END""",
    """CREATE TRIGGER slices_vram BEFORE INSERT ON slices WHEN NEW.vram_bytes + (SELECT coalesce(sum(vram_bytes), 0) FROM slices WHERE pool = NEW.pool AND slices.state <> 'free') > (SELECT grantable_bytes FROM pools WHERE key = NEW.pool)
BEGIN SELECT RAISE(ABORT, 'more VRAM than the pool has'); END""",
    """CREATE TRIGGER slices_queue_slots BEFORE INSERT ON slices WHEN NEW.queue_slots + (SELECT coalesce(sum(queue_slots), 0) FROM slices WHERE device = NEW.device AND epoch = NEW.epoch AND slices.state <> 'free') > (SELECT queue_slots FROM devices WHERE key = NEW.device AND epoch = NEW.epoch)
BEGIN SELECT RAISE(ABORT, 'more queue slots than the device has'); END""",
    """CREATE TRIGGER slices_exclusive BEFORE INSERT ON slices WHEN EXISTS (SELECT 1 FROM slices WHERE device = NEW.device AND epoch = NEW.epoch AND slices.state <> 'free' AND (exclusive = 1 OR NEW.exclusive = 1))
BEGIN SELECT RAISE(ABORT, 'the device is held exclusively, or not idle'); END""",
    """CREATE TRIGGER slices_shared BEFORE INSERT ON slices WHEN NEW.shared = 1 AND NEW.cus IS NOT (SELECT cus FROM shared_sets WHERE device = NEW.device AND epoch = NEW.epoch)
BEGIN SELECT RAISE(ABORT, 'the device has another shared set'); END""",
    """CREATE TRIGGER slices_keep BEFORE UPDATE OF id, lease, ordinal, device, epoch, pool, cus, cu_count, shared, exclusive, whole, vram_bytes, queue_slots ON slices WHEN 1
BEGIN SELECT RAISE(ABORT, 'a slice keeps what it holds'); END""",
    """CREATE TRIGGER slices_move BEFORE UPDATE OF state ON slices WHEN NOT ((OLD.state = 'cleaning' AND NEW.state IN ('free', 'quarantined')) OR (OLD.state = 'held' AND NEW.state IN ('cleaning')) OR (OLD.state = 'quarantined' AND NEW.state IN ('free')))
BEGIN SELECT RAISE(ABORT, 'illegal move of a slice'); END""",
    """CREATE TRIGGER slices_free AFTER UPDATE OF state ON slices WHEN NEW.state = 'free'
BEGIN
DELETE FROM held_cus WHERE slice = NEW.id;
DELETE FROM held_cus WHERE NEW.shared = 1 AND slice IS NULL AND device = NEW.device AND epoch = NEW.epoch
    AND NOT EXISTS (SELECT 1 FROM slices WHERE device = NEW.device AND epoch = NEW.epoch AND shared = 1
        AND slices.state <> 'free');
DELETE FROM shared_sets WHERE NEW.shared = 1 AND device = NEW.device AND epoch = NEW.epoch
    AND NOT EXISTS (SELECT 1 FROM slices WHERE device = NEW.device AND epoch = NEW.epoch AND shared = 1
        AND slices.state <> 'free');
END""",
    """CREATE TRIGGER slices_delete_free BEFORE DELETE ON slices WHEN OLD.state <> 'free'
BEGIN SELECT RAISE(ABORT, 'a slice is kept until it is free'); END""",
    """CREATE TRIGGER held_cus_exist BEFORE INSERT ON held_cus WHEN NEW.cu >= (SELECT cus FROM devices WHERE key = NEW.device AND epoch = NEW.epoch)
BEGIN SELECT RAISE(ABORT, 'the device has no such CU'); END""",
    """CREATE TRIGGER held_cus_owner BEFORE INSERT ON held_cus WHEN NEW.slice IS NOT NULL AND NOT EXISTS (SELECT 1 FROM slices WHERE id = NEW.slice AND shared = 0 AND device = NEW.device AND epoch = NEW.epoch AND state = 'held') OR NEW.slice IS NULL AND NOT EXISTS (SELECT 1 FROM shared_sets WHERE device = NEW.device AND epoch = NEW.epoch)
BEGIN SELECT RAISE(ABORT, 'a CU is held by a held slice of its device, or by its shared set'); END""",
    """CREATE TRIGGER held_cus_keep BEFORE UPDATE ON held_cus WHEN 1
BEGIN SELECT RAISE(ABORT, 'a held CU is not handed over'); END""",
    """CREATE TRIGGER held_cus_delete BEFORE DELETE ON held_cus WHEN (SELECT state FROM slices WHERE id = OLD.slice) <> 'free' OR OLD.slice IS NULL AND EXISTS (SELECT 1 FROM slices WHERE device = OLD.device AND epoch = OLD.epoch AND shared = 1 AND slices.state <> 'free')
BEGIN SELECT RAISE(ABORT, 'a CU is held until its slice is free'); END""",
    """CREATE TRIGGER shared_sets_keep BEFORE UPDATE ON shared_sets WHEN 1
BEGIN SELECT RAISE(ABORT, 'a shared set is not changed while it is shared'); END""",
    """CREATE TRIGGER shared_sets_delete BEFORE DELETE ON shared_sets WHEN EXISTS (SELECT 1 FROM slices WHERE device = OLD.device AND epoch = OLD.epoch AND shared = 1 AND slices.state <> 'free')
BEGIN SELECT RAISE(ABORT, 'a shared set is kept while it is shared'); END""",
)


def upgrade() -> None:
    op.create_table(
        "boots",
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("started_ns", sa.Integer(), nullable=False),
        sa.Column("at", sa.REAL(), nullable=False),
        sa.PrimaryKeyConstraint("boot_id", name=op.f("pk_boots")),
        sqlite_strict=True,
    )
    op.create_table(
        "drains",
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("uid", sa.Integer(), nullable=False),
        sa.Column("until_ns", sa.Integer(), nullable=True),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("at", sa.REAL(), nullable=False),
        sa.PrimaryKeyConstraint("device", name=op.f("pk_drains")),
        sqlite_strict=True,
    )
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("uid", sa.Integer(), nullable=True),
        sa.Column("lease", sa.Integer(), nullable=True),
        sa.Column("device", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("data", sa.Text(), nullable=True),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("boot_ns", sa.Integer(), nullable=False),
        sa.Column("at", sa.REAL(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sqlite_autoincrement=True,
        sqlite_strict=True,
    )
    op.create_index("ix_events_lease", "events", ["lease", "id"], unique=False)
    op.create_table(
        "high_water",
        sa.Column("row", sa.Integer(), nullable=False),
        sa.Column("lease", sa.Integer(), nullable=False),
        sa.CheckConstraint("row = 1", name=op.f("ck_high_water_one")),
        sa.PrimaryKeyConstraint("row", name=op.f("pk_high_water")),
        sqlite_strict=True,
    )
    op.create_table(
        "pools",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("region", sa.Text(), nullable=False),
        sa.Column("vram_bytes", sa.Integer(), nullable=False),
        sa.Column("grantable_bytes", sa.Integer(), nullable=False),
        sa.CheckConstraint("grantable_bytes >= 0", name=op.f("ck_pools_grantable_bytes")),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_pools")),
        sqlite_strict=True,
    )
    op.create_table(
        "devices",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("cus", sa.Integer(), nullable=False),
        sa.Column("queue_slots", sa.Integer(), nullable=False),
        sa.Column("compute_partition", sa.Text(), nullable=True),
        sa.Column("memory_partition", sa.Text(), nullable=True),
        sa.CheckConstraint("cus >= 0", name=op.f("ck_devices_cus")),
        sa.CheckConstraint("queue_slots >= 0", name=op.f("ck_devices_queue_slots")),
        sa.ForeignKeyConstraint(["pool"], ["pools.key"], name=op.f("fk_devices_pool")),
        sa.PrimaryKeyConstraint("key", "epoch", name=op.f("pk_devices")),
        sqlite_strict=True,
    )
    op.create_table(
        "leases",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("holder_kind", sa.Text(), nullable=False),
        sa.Column("holder_id", sa.Text(), nullable=False),
        sa.Column("uid", sa.Integer(), nullable=False),
        sa.Column("gid", sa.Integer(), nullable=False),
        sa.Column("charged_uid", sa.Integer(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("created_ns", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.REAL(), nullable=False),
        sa.Column("wait_until_ns", sa.Integer(), nullable=True),
        sa.Column("guarantee", sa.Text(), nullable=False),
        sa.Column("environment", sa.Text(), nullable=True),
        sa.Column("cgroup", sa.Text(), nullable=True),
        sa.Column("ended_ns", sa.Integer(), nullable=True),
        sa.Column("ended_at", sa.REAL(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "(state IN ('cancelled', 'failed', 'released')) = (ended_ns IS NOT NULL)",
            name=op.f("ck_leases_ended"),
        ),
        sa.CheckConstraint(
            "holder_kind IN ('client', 'docker', 'process', 'slurm')", name=op.f("ck_leases_holder_kind")
        ),
        sa.CheckConstraint(
            "state IN ('active', 'cancelled', 'failed', 'lost', 'preparing', 'queued', 'released', 'releasing')",
            name=op.f("ck_leases_state"),
        ),
        sa.CheckConstraint("(ended_ns IS NULL) = (ended_at IS NULL)", name=op.f("ck_leases_ended_at")),
        sa.CheckConstraint("id > 0", name=op.f("ck_leases_id")),
        sa.ForeignKeyConstraint(["boot_id"], ["boots.boot_id"], name=op.f("fk_leases_boot_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_leases")),
        sqlite_strict=True,
    )
    op.create_index("ix_leases_ended", "leases", ["ended_at"], unique=False)
    op.create_index("ix_leases_holder", "leases", ["holder_kind", "holder_id", "id"], unique=False)
    op.create_index(
        "ix_leases_live",
        "leases",
        ["charged_uid"],
        unique=False,
        sqlite_where=sa.text("leases.ended_ns IS NULL"),
    )
    op.create_index("ix_leases_uid", "leases", ["uid", "id"], unique=False)
    op.create_table(
        "anchors",
        sa.Column("lease", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("armed", sa.Integer(), nullable=False),
        sa.Column("deadline_ns", sa.Integer(), nullable=True),
        sa.Column("ttl_seconds", sa.Integer(), nullable=True),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("start_time", sa.Integer(), nullable=True),
        sa.Column("cgroup", sa.Text(), nullable=True),
        sa.Column("inode", sa.Integer(), nullable=True),
        sa.CheckConstraint("kind IN ('cgroup', 'external', 'process', 'ttl')", name=op.f("ck_anchors_kind")),
        sa.CheckConstraint("armed IN (0, 1)", name=op.f("ck_anchors_armed")),
        sa.ForeignKeyConstraint(["lease"], ["leases.id"], name=op.f("fk_anchors_lease"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("lease", name=op.f("pk_anchors")),
        sqlite_strict=True,
    )
    op.create_table(
        "effects",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("lease", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("arguments", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("evidence", sa.Text(), nullable=True),
        sa.Column("at_ns", sa.Integer(), nullable=False),
        sa.CheckConstraint(
            "state IN ('applied', 'failed', 'planned', 'undone', 'verified')", name=op.f("ck_effects_state")
        ),
        sa.ForeignKeyConstraint(["lease"], ["leases.id"], name=op.f("fk_effects_lease"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_effects")),
        sqlite_autoincrement=True,
        sqlite_strict=True,
    )
    op.create_index("ix_effects_lease", "effects", ["lease"], unique=False)
    op.create_table(
        "request_keys",
        sa.Column("uid", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("lease", sa.Integer(), nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("at_ns", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["lease"], ["leases.id"], name=op.f("fk_request_keys_lease"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("uid", "request_id", name=op.f("pk_request_keys")),
        sqlite_strict=True,
    )
    op.create_index("ix_request_keys_at_ns", "request_keys", ["at_ns"], unique=False)
    op.create_index("ix_request_keys_lease", "request_keys", ["lease"], unique=False)
    op.create_table(
        "shared_sets",
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("cus", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["device", "epoch"], ["devices.key", "devices.epoch"], name=op.f("fk_shared_sets_device_epoch")
        ),
        sa.PrimaryKeyConstraint("device", "epoch", name=op.f("pk_shared_sets")),
        sqlite_strict=True,
    )
    op.create_table(
        "slices",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("lease", sa.Integer(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("cus", sa.Text(), nullable=False),
        sa.Column("cu_count", sa.Integer(), nullable=False),
        sa.Column("shared", sa.Integer(), nullable=False),
        sa.Column("exclusive", sa.Integer(), nullable=False),
        sa.Column("whole", sa.Integer(), nullable=False),
        sa.Column("cu_requested", sa.Integer(), nullable=False),
        sa.Column("effective_cus", sa.Integer(), nullable=False),
        sa.Column("vram_bytes", sa.Integer(), nullable=False),
        sa.Column("queue_slots", sa.Integer(), nullable=False),
        sa.Column("shape", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.CheckConstraint("shape IN ('even', 'exact')", name=op.f("ck_slices_shape")),
        sa.CheckConstraint(
            "state IN ('cleaning', 'free', 'held', 'quarantined')", name=op.f("ck_slices_state")
        ),
        sa.CheckConstraint("cu_count >= 0", name=op.f("ck_slices_cu_count")),
        sa.CheckConstraint("exclusive IN (0, 1)", name=op.f("ck_slices_exclusive")),
        sa.CheckConstraint("ordinal >= 0", name=op.f("ck_slices_ordinal")),
        sa.CheckConstraint("queue_slots >= 0", name=op.f("ck_slices_queue_slots")),
        sa.CheckConstraint("shared IN (0, 1)", name=op.f("ck_slices_shared")),
        sa.CheckConstraint("vram_bytes >= 0", name=op.f("ck_slices_vram_bytes")),
        sa.CheckConstraint("whole IN (0, 1)", name=op.f("ck_slices_whole")),
        sa.ForeignKeyConstraint(
            ["device", "epoch"], ["devices.key", "devices.epoch"], name=op.f("fk_slices_device_epoch")
        ),
        sa.ForeignKeyConstraint(["lease"], ["leases.id"], name=op.f("fk_slices_lease"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["pool"], ["pools.key"], name=op.f("fk_slices_pool")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_slices")),
        sa.UniqueConstraint("lease", "ordinal", name=op.f("uq_slices_lease_ordinal")),
        sqlite_strict=True,
    )
    op.create_index("ix_slices_device", "slices", ["device", "lease"], unique=False)
    op.create_index(
        "ix_slices_live_device",
        "slices",
        ["device", "epoch"],
        unique=False,
        sqlite_where=sa.text("slices.state <> 'free'"),
    )
    op.create_index(
        "ix_slices_live_pool",
        "slices",
        ["pool"],
        unique=False,
        sqlite_where=sa.text("slices.state <> 'free'"),
    )
    op.create_table(
        "held_cus",
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("cu", sa.Integer(), nullable=False),
        sa.Column("slice", sa.Integer(), nullable=True),
        sa.CheckConstraint("cu >= 0", name=op.f("ck_held_cus_cu")),
        sa.ForeignKeyConstraint(
            ["device", "epoch"], ["devices.key", "devices.epoch"], name=op.f("fk_held_cus_device_epoch")
        ),
        sa.ForeignKeyConstraint(["slice"], ["slices.id"], name=op.f("fk_held_cus_slice")),
        sa.PrimaryKeyConstraint("device", "epoch", "cu", name=op.f("pk_held_cus")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("ix_held_cus_slice", "held_cus", ["slice"], unique=False)
    for trigger in TRIGGERS:
        op.execute(sa.DDL(trigger.replace("%", "%%")))
