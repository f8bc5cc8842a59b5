"""Every subject by its name, in the order of the report."""

from __future__ import annotations

from tests.bench import (
    commands,
    contention,
    docker_cost,
    docker_plugin_cost,
    hook_cost,
    idle,
    latency,
    lived,
    scrape,
    slurm_cost,
    supervisor_cost,
    syncs,
)
from tests.bench.figures import Subject

SUBJECTS: dict[str, Subject] = {
    **latency.SUBJECTS,
    **syncs.SUBJECTS,
    **lived.SUBJECTS,
    **idle.SUBJECTS,
    **scrape.SUBJECTS,
    **commands.SUBJECTS,
    **slurm_cost.SUBJECTS,
    **docker_cost.SUBJECTS,
    **docker_plugin_cost.SUBJECTS,
    **hook_cost.SUBJECTS,
    **supervisor_cost.SUBJECTS,
    **contention.SUBJECTS,
}
