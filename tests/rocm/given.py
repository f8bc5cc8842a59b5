"""Run a command in what a lease's CDI file gives a container, but for the container: `python -m` this.

Arguments: slices as POST /v1/leases takes them, in JSON; a root directory, / or a chroot; the command. Of the
mounts those over /sys are made, so nothing is loaded into it; of /dev/dri it sees the nodes that are given.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from gpulease import Client

VIEW = """
root=$1; shift
while [ "$1" != -- ]; do mount --bind "$1" "$root$2"; shift 2; done; shift
mount --rbind "$root/dev/dri" /mnt && mount -t tmpfs none "$root/dev/dri"
while [ "$1" != -- ]; do touch "$root$1" && mount --bind "/mnt/${1##*/}" "$root$1"; shift; done; shift
exec "$@"
"""


def main(slices: str, root: str, *command: str) -> int:
    client = Client()
    holder, anchor = {"kind": "client", "id": "given"}, {"kind": "ttl"}
    lease = client.grant(slices=json.loads(slices), holder=holder, anchor=anchor, cdi=True)
    try:
        (file,) = Path("/run/cdi").glob(f"nodeagent-*-{lease.id}.json")
        (device,) = json.loads(file.read_bytes())["devices"]
        edits = device["containerEdits"]
        banks = [one for one in edits["mounts"] if one["containerPath"].startswith("/sys/")]
        mounts = [word for one in banks for word in (one["hostPath"], one["containerPath"])]
        renders = [one["path"] for one in edits["deviceNodes"] if "/dri/" in one["path"]]
        words = ["sh", "-ec", VIEW, "sh", root.rstrip("/"), *mounts, "--", *renders, "--", *command]
        environment = dict(variable.split("=", 1) for variable in edits["env"])
        path = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        return subprocess.run(["unshare", "--mount", *words], env=path | environment, check=False).returncode
    finally:
        client.release(lease.id, wait=5)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
