"""What an administrator and a user see of a lease from grant to release, on any node."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys

import pytest

from nodeagent.adapters.cgroup_mount import find_mount

OTHER_USER = 64_321
SOON = 2 * int(os.environ.get("NODEAGENT_PATIENCE", "1"))  # seconds, in which a lease can be attacked


def run_lines(node, *words):
    """The standard output lines of `gpulease run … -- sh -c SCRIPT`, which must succeed."""
    done = node.gpulease(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_devices_have_unique_keys_and_sizes(node):
    """Every device is listed once, a healthy one with its CUs, VRAM and queue slots."""
    devices = node.http("GET", "/v1/devices").body["devices"]
    assert len({one["device"] for one in devices}) == len(devices)
    healthy = [one for one in devices if one["state"] == "healthy"]
    assert healthy
    assert all(one["cus"] and one["grantable_bytes"] and one["queue_slots"] for one in healthy)


def test_a_run_sees_its_slice_and_gives_it_back(node):
    """Inside the command stand one visibility variable, the mask and the limit; afterwards all is free."""
    device = node.device()
    before = node.free(device["device"])
    script = 'echo "$ROCR_VISIBLE_DEVICES|$HSA_CU_MASK|$GPULEASE_VRAM_BYTES|${HIP_VISIBLE_DEVICES-unset}"'
    lines = run_lines(
        node, "run", "--device", device["device"], "--cu", "25%", "--vram", "1G", "--", "sh", "-c", script
    )
    visible, mask, limit, hip = lines[0].split("|")
    assert visible and mask.startswith("0:") and limit == str(1 << 30) and hip == "unset"
    assert node.until(lambda: node.free(device["device"]) == before)


def test_two_runs_on_one_device_never_share_a_cu(node):
    """Two live leases of one device have disjoint CU lists and both are drawn by status."""
    device = node.device()
    first = node.http("POST", "/v1/leases", ask(device, cu_percent=25))
    second = node.http("POST", "/v1/leases", ask(device, cu_percent=25))
    assert (first.status, second.status) == (201, 201)
    sets = [members(one.body["slices"][0]["cus"]) for one in (first, second)]
    assert not sets[0] & sets[1]
    shown = node.gpulease("status")
    assert shown.returncode == 0
    assert str(first.body["id"]) in shown.stdout and str(second.body["id"]) in shown.stdout


def test_a_refusal_says_code_blockers_and_next_act(node):
    """What does not fit is refused with the code, the lease that blocks, and what to do; nothing changes."""
    device = node.device()
    held = node.http("POST", "/v1/leases", ask(device)).body
    before = node.http("GET", "/v1/devices").body
    refused = node.http("POST", "/v1/leases", ask(device, cu_percent=25))
    assert refused.status == 409
    assert refused.body["code"] == "ExclusiveDeviceAllocateConflict"
    assert refused.body["blockers"] == [held["id"]]
    assert refused.body["next"]
    assert node.http("GET", "/v1/devices").body == before
    assert node.gpulease("grant", "--device", device["device"], "--cu", "25%").returncode == 3


def test_the_same_request_gives_the_same_lease(node):
    """A repeated request id with the same body is the same lease; with another body it is refused."""
    device = node.device()
    body = {**ask(device, cu_percent=25), "request_id": f"again-{os.getpid()}"}
    first, again = (node.http("POST", "/v1/leases", body) for _ in range(2))
    assert (first.status, again.status) == (201, 200)
    assert first.body["id"] == again.body["id"]
    other = {**ask(device, cu_percent=50), "request_id": body["request_id"]}
    assert node.http("POST", "/v1/leases", other).body["code"] == "KeyReused"


def test_the_exit_code_is_the_commands_own(node):
    """`run` returns what the command returned."""
    done = node.gpulease("run", "--cu", "25%", "--vram", "1G", "--", "sh", "-c", "exit 7")
    assert done.returncode == 7, done.stderr


@pytest.mark.unattacked("nothing ever runs in it")
def test_a_command_that_does_not_exist_is_125_and_leaves_no_lease(node):
    """A failure before the start is 125, with the reason as the last line, and nothing is held."""
    done = node.gpulease("run", "--cu", "25%", "--vram", "1G", "--", "/no/such/command")
    assert done.returncode == 125
    assert done.stderr.splitlines()[-1].startswith("gpulease: ")
    assert node.until(lambda: not node.live())


def test_a_signal_reaches_the_command(node):
    """SIGTERM to the wrapper ends the command, and the lease with it."""
    child = started(node, "trap 'exit 9' TERM; echo up; while :; do sleep 0.1; done")
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=30) == 9
    assert node.until(lambda: not node.live())


def test_a_killed_wrapper_leaves_nothing(node):
    """kill -9 of the wrapper ends the command and the lease."""
    child = started(node, "echo up; while :; do sleep 0.1; done")
    child.kill()
    assert node.until(lambda: not node.live())


@pytest.mark.cgroup2
def test_release_kills_what_still_runs(node):
    """A release ends the lease's processes, stray ones too, before the slice is free."""
    child = started(node, "setsid sleep 600 & echo up $!; wait")
    lease = node.live()[0]
    assert lease["cgroup"]
    released = node.http("DELETE", f"/v1/leases/{lease['id']}?wait=5")
    assert (released.status, released.body["state"]) == (200, "released")
    child.wait(timeout=30)
    assert node.free(lease["slices"][0]["device"])["cus"] == node.device()["cus"]


def test_a_stale_lease_is_gone(node):
    """Attach and renew of an ended lease are 410; releasing it again is success."""
    lease = node.http("POST", "/v1/leases", ask(node.device(), cu_percent=25)).body
    node.http("DELETE", f"/v1/leases/{lease['id']}?wait=5")
    assert node.http("POST", f"/v1/leases/{lease['id']}/attach", {}).status == 410
    assert node.http("POST", f"/v1/leases/{lease['id']}/renew", {}).status == 410
    assert node.http("DELETE", f"/v1/leases/{lease['id']}").status == 200


def test_a_ttl_lease_ends_by_itself(node):
    """A lease that is not renewed ends when its time is up."""
    body = {**ask(node.device(), cu_percent=25), "ttl_seconds": SOON}
    lease = node.http("POST", "/v1/leases", body).body
    assert node.until(lambda: node.lease(lease["id"])["state"] == "released")


def test_a_waiting_request_gets_its_turn(node):
    """A request that waits is granted when what blocks it is released."""
    device = node.device()
    held = node.http("POST", "/v1/leases", ask(device)).body
    waiting = node.http("POST", "/v1/leases", {**ask(device, cu_percent=25), "wait_seconds": 60})
    assert (waiting.status, waiting.body["state"]) == (202, "queued")
    node.http("DELETE", f"/v1/leases/{held['id']}?wait=5")
    assert node.until(lambda: node.lease(waiting.body["id"])["state"] == "active")


@pytest.mark.root
def test_a_drained_device_grants_nothing_and_goes_on(node):
    """Drain refuses new leases with the administrator's reason; undrain grants again."""
    device = node.device()["device"]
    held = node.http("POST", "/v1/leases", ask({"device": device}, cu_percent=25)).body
    node.http("POST", f"/v1/devices/{device}/drain", {"reason": "fan"})
    refused = node.http("POST", "/v1/leases", ask({"device": device}, cu_percent=25))
    assert refused.body["code"] == "CardCordoned"
    assert node.lease(held["id"])["state"] == "active"
    assert node.http("POST", f"/v1/leases/{held['id']}/renew", {}).status == 200
    node.http("POST", f"/v1/devices/{device}/undrain", {})
    assert node.http("POST", "/v1/leases", ask({"device": device}, cu_percent=25)).status == 201


@pytest.mark.root
def test_administering_by_any_name(node):
    """drain, undrain and clear take every name that is printed; one of no device is said to be none."""

    def administer(*words):
        return node.python("-m", "nodeagent.cli.main", *words)

    device = node.device()
    for verb, state in (("drain", "draining"), ("undrain", "healthy")):
        done = administer(verb, device["pci"])
        assert (done.returncode, f"{device['device']}: {state}" in done.stdout) == (0, True), done.stderr
    assert administer("clear", device["render_node"]).returncode == 0
    for verb in ("drain", "undrain", "clear"):
        done = administer(verb, "0000:ff:1f.7")
        assert (done.returncode, "names no device of this node" in done.stderr) == (2, True)


def test_two_devices_in_one_lease(node):
    """A lease of two devices has disjoint slices and a mask for each, in the order of visibility."""
    healthy = [d for d in node.http("GET", "/v1/devices").body["devices"] if d["state"] == "healthy"]
    if len(healthy) < 2:
        pytest.skip("this node has one device")
    body = {"slices": [{"count": 2, "cu_percent": 25, "vram_bytes": 1 << 30}], "anchor": {"kind": "ttl"}}
    lease = node.http("POST", "/v1/leases", body).body
    assert len({one["device"] for one in lease["slices"]}) == 2
    assert [part.split(":")[0] for part in lease["environment"]["HSA_CU_MASK"].split(";")] == ["0", "1"]
    assert len(lease["environment"]["ROCR_VISIBLE_DEVICES"].split(",")) == 2


def test_an_adopted_process_is_never_signalled(node):
    """Releasing an adopted lease neither ends the process nor frees its slice while it runs."""
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        done = node.gpulease("adopt", str(stranger.pid), "--cu", "25%", "--vram", "1G", "--json")
        assert done.returncode == 0, done.stderr
        lease = json.loads(done.stdout)
        assert lease["guarantee"]["memory"] == "advisory"
        node.http("DELETE", f"/v1/leases/{lease['id']}")
        assert stranger.poll() is None
        assert node.free(lease["slices"][0]["device"])["cus"] < node.device()["cus"]
    finally:
        stranger.kill()
        stranger.wait()
    assert node.until(lambda: not node.live())


@pytest.mark.root
def test_another_user_sees_sizes_only_and_may_not_touch(node):
    """Others see that a lease exists, on what and how big; its holder, environment and cgroup they do not."""
    lease = node.http("POST", "/v1/leases", ask(node.device(), cu_percent=25)).body
    seen = node.gpulease("show", str(lease["id"]), "--json", user=OTHER_USER)
    assert seen.returncode == 0, seen.stderr
    body = json.loads(seen.stdout)
    assert body["slices"][0]["device"] == lease["slices"][0]["device"]
    assert not body.get("environment") and not body.get("cgroup") and body["holder"]["uid"] is None
    assert node.gpulease("release", str(lease["id"]), user=OTHER_USER).returncode == 4
    assert node.lease(lease["id"])["state"] == "active"


@pytest.mark.root
def test_a_user_runs_in_a_lease_of_its_own(node):
    """An ordinary user gets a lease, runs in it, and it is gone afterwards."""
    done = node.gpulease(
        "run", "--cu", "25%", "--vram", "1G", "--", "sh", "-c", "id -u; echo $HSA_CU_MASK", user=OTHER_USER
    )
    assert done.returncode == 0, done.stderr
    uid, mask = done.stdout.split()
    assert uid == str(OTHER_USER) and mask.startswith("0:")
    assert node.until(lambda: not node.live())


@pytest.mark.root
def test_a_user_cannot_hold_for_a_job_or_another_process(node):
    """Holder kinds slurm and docker come from administrators; a process holds for itself alone."""
    for holder in (
        {"kind": "slurm", "id": "42"},
        {"kind": "docker", "id": "web"},
        {"kind": "process", "id": "1"},
    ):
        body = json.dumps({"holder": holder, "anchor": {"kind": "ttl"}})
        script = (
            "import os;from gpulease.transport import Transport;"
            f"print(Transport(os.environ['GPULEASE_SOCKET'],timeout=5).call('POST','/v1/leases',{body!r}.encode()).status)"
        )
        done = node.python("-c", script, user=OTHER_USER)
        assert done.stdout.strip() in ("403", "422"), (holder, done.stdout, done.stderr)
    assert not node.live()


@pytest.mark.root
@pytest.mark.cgroup2
def test_a_run_inside_a_job_nests_below_it(node):
    """The lease's cgroup of a `run` in a job's cgroup lies below that, so no limit of the job is shed."""
    job = find_mount() / f"job_{os.getpid()}"
    job.mkdir()
    try:
        words = ("run", "--cu", "25%", "--vram", "1G", "--", "grep", "0::", "/proc/self/cgroup")
        run = shlex.join([sys.executable, "-m", "gpulease", *node.attacking(words)])
        done = subprocess.run(
            ["sh", "-c", f"echo $$ > {job}/cgroup.procs && exec {run}"],
            env=node.environment(),
            text=True,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"0::/{job.name}/gpulease")
        assert node.until(lambda: not node.live())
        assert not [entry for entry in job.iterdir() if entry.is_dir()]
    finally:
        node.until(lambda: removed(job))


def ask(device, **sizes):
    """The body of a ttl lease on *device*; with no sizes the whole of it."""
    return {"slices": [{"device": [device["device"]], **sizes}], "anchor": {"kind": "ttl"}}


def members(text):
    """The numbers in list syntax."""
    numbers = set()
    for item in text.split(","):
        low, _, high = item.partition("-")
        numbers |= set(range(int(low), int(high or low) + 1))
    return numbers


def started(node, script):
    """A `gpulease run` whose command has printed its first line."""
    child = node.background("run", "--cu", "25%", "--vram", "1G", "--", "sh", "-c", script)
    assert child.stdout.readline().startswith("up"), child.stderr.read()
    return child


def removed(directory):
    """Whether the cgroup could be removed by now: a process that has ended leaves it a moment later."""
    try:
        directory.rmdir()
    except OSError:
        return False
    return True
