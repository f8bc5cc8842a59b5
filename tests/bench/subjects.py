"""Every subject by its name, in the order of the report."""

from __future__ import annotations

from tests.bench import idle, latency, lived, syncs
from tests.bench.figures import Subject

SUBJECTS: dict[str, Subject] = {
    **latency.SUBJECTS,
    **syncs.SUBJECTS,
    **lived.SUBJECTS,
    **idle.SUBJECTS,
}
