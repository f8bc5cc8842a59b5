"""Print what a package carries as CycloneDX JSON: `sbom.py SITE_PACKAGES VERSION`. Needs no network.

Names, versions and licences are those of the installed distributions; the hashes are the lock's.
"""

from __future__ import annotations

import importlib.metadata as installed
import json
import re
import sys
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OURS = ("nodeagent", "gpulease")


def locked_hashes() -> dict[str, list[str]]:
    """The sha256 of each file that may be taken, by ``name==version``."""
    text = (ROOT / "requirements/hashes.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if "==" in line]
    return {pinned: [one.removeprefix("--hash=sha256:") for one in hashes] for pinned, *hashes in lines}


def component(found: installed.Distribution, hashes: dict[str, list[str]]) -> dict[str, Any]:
    """One library. A lock may name a file for each Python; they are one component."""
    name = re.sub(r"[-_.]+", "-", found.metadata["Name"]).lower()
    licence = found.metadata.get("License-Expression") or found.metadata.get("License") or "see its metadata"
    return {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}@{found.version}",
        "name": name,
        "version": found.version,
        "purl": f"pkg:pypi/{name}@{found.version}",
        "licenses": [{"license": {"name": licence.splitlines()[0]}}],
        "hashes": [{"alg": "SHA-256", "content": one} for one in hashes.get(f"{name}=={found.version}", [])],
    }


def main() -> None:
    """Sorted and without a time: the same lock gives the same bill, byte for byte."""
    site, version = sys.argv[1:]
    hashes = locked_hashes()
    found = sorted(installed.distributions(path=[site]), key=lambda one: one.metadata["Name"].lower())
    components = [component(one, hashes) for one in found if one.metadata["Name"] not in OURS]
    main_ref = f"pkg:deb/nodeagent@{version}"
    content = json.dumps(components, sort_keys=True)
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, main_ref + content)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": main_ref,
                "name": "nodeagent",
                "version": version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": components,
        "dependencies": [{"ref": main_ref, "dependsOn": [one["bom-ref"] for one in components]}],
    }
    print(json.dumps(bill, indent=2))


if __name__ == "__main__":
    main()
