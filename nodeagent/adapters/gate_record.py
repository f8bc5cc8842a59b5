"""What device nodes were before the gate closed them: on record before the act, to be put back."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodeagent.adapters.acl import Acl, DeviceNode, decode, encode
from nodeagent.domain.errors import OutsideFault

RECORD = "gate.json"


class GateRecord:
    """Of this boot only: device nodes are made anew at each. All raise OutsideFault."""

    def __init__(self, state: Path, boot_id: str) -> None:
        self._path = state / RECORD
        self._boot_id = boot_id

    def remembered(self, node: DeviceNode, current: Acl) -> frozenset[int]:
        """The uids that the gate let in; what the node was before it is first closed goes to disk before."""
        kept = self._kept()
        if str(node.path) not in kept:
            was = {"acl": encode(current).hex(), "major": node.major, "minor": node.minor, "mine": []}
            self._write(kept | {str(node.path): was})
            return frozenset()
        return frozenset(kept[str(node.path)]["mine"])

    def keep(self, node: DeviceNode, mine: frozenset[int]) -> None:
        """Note whom the gate lets in, of a node that is remembered."""
        kept = self._kept()
        if mine != frozenset(kept[str(node.path)]["mine"]):
            self._write(kept | {str(node.path): {**kept[str(node.path)], "mine": sorted(mine)}})

    def restore(self) -> int:
        """Put every node back into the state that it had; how many there were."""
        if not self._path.exists():
            return 0
        kept = self._kept()
        for path, told in kept.items():
            node = DeviceNode(Path(path), int(told["major"]), int(told["minor"]))
            if node.path.exists():  # the device may have gone with its node
                node.write(decode(bytes.fromhex(str(told["acl"]))))
        self._path.unlink(missing_ok=True)
        return len(kept)

    def _write(self, nodes: Mapping[str, Any]) -> None:
        new = self._path.with_suffix(".new")
        with new.open("w", encoding="utf-8") as file:
            json.dump({"boot_id": self._boot_id, "nodes": nodes}, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)

    def _kept(self) -> dict[str, dict[str, Any]]:
        try:
            told = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as fault:
            raise OutsideFault(self._path, f"cannot be read: {fault}") from fault
        nodes: dict[str, dict[str, Any]] = told["nodes"]
        return nodes if told["boot_id"] == self._boot_id else {}
