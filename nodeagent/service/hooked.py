"""The hook tier: a library in the holder's programs that keeps them to their bytes and CUs.

It holds programs that are honest or careless. Its own holder can go around it: see docs/enforcement.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.adapters.hook_files import HookFiles
from nodeagent.domain.guarantee import Compute, Hold, Memory
from nodeagent.service.charging import chargeable, charged_devices, devices_of
from nodeagent.service.effects import Arguments, Evidence, Pending, Planned, Told
from nodeagent.service.means import Setting
from nodeagent.service.orders import Tier

HOOK = "hook"


class HookMeans:
    """Prepares the hook's files for leases whose programs start after the grant. *files* None: turned off."""

    at_best = Hold(memory=Memory.HOOK, compute=Compute.HOOK)

    def __init__(self, files: HookFiles | None) -> None:
        self._files = files

    def tier(self) -> Tier:
        why = self._unavailable()
        return Tier(
            "hook", why is None, why or "a library in the lease's programs refuses what is over its slice"
        )

    def promise(self, setting: Setting) -> Hold:
        return self.at_best if self._applies(setting) else Hold()

    def plan(self, lease_id: int, setting: Setting) -> Sequence[Planned]:
        if not self._applies(setting):
            return []
        devices, demanded = charged_devices(setting), setting.demanded.memory
        strict = demanded is not None and demanded is not Memory.ADVISORY
        return [Planned(HOOK, {"lease": lease_id, "uid": setting.uid, "devices": devices, "strict": strict})]

    def _applies(self, setting: Setting) -> bool:
        return not setting.adopted and chargeable(setting) and self._unavailable() is None

    def _unavailable(self) -> str | None:
        return "turned off by hook.enabled" if self._files is None else self._files.unavailable()


class HookEffect:
    """The hook's files of one lease, and the variables that make its programs load the hook."""

    def __init__(self, files: HookFiles) -> None:
        self._files = files

    def apply(self, arguments: Arguments) -> Evidence:
        path = self._files.prepare(
            int(arguments["lease"]),
            int(arguments["uid"]),
            devices_of(arguments),
            strict=bool(arguments["strict"]),
        )
        return {"limits": str(path)}

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        self._files.verify(
            int(arguments["lease"]),
            int(arguments["uid"]),
            devices_of(arguments),
            strict=bool(arguments["strict"]),
        )
        return {
            "holds": {"memory": Memory.HOOK, "compute": Compute.HOOK},
            "environment": {
                "LD_PRELOAD": str(self._files.library()),
                "GPULEASE_HOOK": str(self._files.limits_path(int(arguments["lease"]))),
            },
        }

    def told(self, arguments: Arguments) -> Told:
        usage = self._files.usage(int(arguments["lease"]), len(arguments["devices"]))
        return Told(usage.used_bytes, usage.denied)

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        self._files.remove(int(arguments["lease"]))
        return {"removed": True}
