"""Guests: containers in a lease that was not taken for them, but that they were started in."""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.adapters.hook_files import HookFiles
from nodeagent.domain.container import Loading
from nodeagent.service.admission import Admission
from nodeagent.service.charging import devices_of
from nodeagent.service.contained import Ending
from nodeagent.service.effects import Arguments, Done, Evidence, Pending, evidence_of
from nodeagent.service.guest_records import container_of
from nodeagent.service.hooked import inside
from nodeagent.service.memory_banks import BANKS


class GuestEffect:
    """A guest's note and ticket, and what its engine is to be told. What limits it is the lease's."""

    def __init__(self, admission: Admission, hook: HookFiles, stopping: Ending) -> None:
        self._admission = admission
        self._hook = hook
        self._stopping = stopping

    def apply(self, arguments: Arguments) -> Evidence:
        lease, guest, hook = int(arguments["lease"]), int(arguments["guest"]), arguments["hook"]
        note = self._admission.prepare(lease, guest)
        if hook is None:
            return {"mounts": [note], "environment": {}}
        self._hook.let_guests_in(lease, devices_of(hook))
        limits, loading = self._hook.guests_limits_path(lease), Loading(**hook["loading"])
        given = inside(self._hook, lease, limits, loading)
        return {**given, "mounts": [*given["mounts"], note]}

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        self._admission.files.verify(int(arguments["lease"]), int(arguments["guest"]))
        return {}

    def conclude(self, arguments: Arguments, before: Sequence[Done]) -> Evidence:
        lease, guest = int(arguments["lease"]), int(arguments["guest"])
        banks = (evidence_of(before, BANKS) or {}).get("mounts", [])
        given = self.apply(arguments)
        mounts = [*banks, *given["mounts"]]
        said = self._admission.let_in(
            lease, arguments["parent"], arguments["render_minors"], mounts, guest=guest
        )
        return {**said, "mounts": mounts}

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        """As of a lease's own container; what the lease has is not touched."""
        lease, guest = int(arguments["lease"]), int(arguments["guest"])
        self._admission.files.remove_guest(lease, guest)
        held, in_cgroup = container_of(arguments, evidence), arguments["parent"] is not None
        return self._stopping.advance(lease, held, in_cgroup=in_cgroup, guest=guest)
