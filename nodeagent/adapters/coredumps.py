"""The kernel's device dumps: amdgpu writes one when it resets a card, where the kernel is built with them.

See drivers/base/devcoredump.c: ``/sys/class/devcoredump/devcd<n>``, with a link to the device that failed.
Numbers only grow within a boot; a dump goes after five minutes, or when somebody has done with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from nodeagent.adapters.sysfs import SysTree, Unread

CLASS = "sys/class/devcoredump"
_NAME = re.compile(r"devcd[0-9]+")
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def dumps(tree: SysTree) -> Mapping[str, str]:
    """The dumps there are, by name, with the PCI address of the device that each is of."""
    names = tree.names(CLASS)
    found = (
        {}
        if isinstance(names, Unread)
        else {name: tree.link(f"{CLASS}/{name}/failing_device") for name in names}
    )
    of = {name: (link or "").rpartition("/")[2] for name, link in found.items() if _NAME.fullmatch(name)}
    return {name: pci for name, pci in of.items() if _PCI.fullmatch(pci)}
