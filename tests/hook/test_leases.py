"""Which lease a process belongs to, and what happens where its files are not as they should be."""

from __future__ import annotations

import os
import shutil

import pytest

from .conftest import LEASE, MIB, Node

pytestmark = pytest.mark.hook

USER = 4321


@pytest.fixture
def own_cgroup():
    """Makes cgroups, and removes them with whoever is in them gone."""
    made = []

    def make(mount, path):
        for at in [*reversed((mount / path).parents), mount / path]:
            if at.is_relative_to(mount) and at != mount and not at.exists():
                at.mkdir()
                made.append(at)
        return mount / path

    yield make
    for cgroup in reversed(made):
        cgroup.rmdir()


def by_variable(node: Node, **more) -> dict[str, str]:
    return {"GPULEASE_HOOK": str(node.files.limits_path(LEASE)), **more}


def test_no_lease_means_no_hook(node: Node) -> None:
    """In a process of no lease everything goes through."""
    program = node.start()
    assert program("alloc(1 << 40)") == 1
    assert program.close() == ""


def test_the_variable_is_the_last_resort(node: Node) -> None:
    """The environment names the limits where neither the fixed file nor the cgroup does."""
    node.lease(10 * MIB)
    node.fixed.unlink()
    assert node.start(env=by_variable(node))("alloc(11 << 20)") == "ENOMEM"


@pytest.mark.way_out(
    "GPULEASE_HOOK pointed elsewhere, before or after the start",
    tier="hook",
    outcome="not looked at where root's file or the cgroup names the lease",
)
def test_the_environment_loosens_nothing(node: Node, make_node) -> None:
    """With a fixed file the variable is not looked at, and setting it later changes nothing."""
    node.lease(10 * MIB)
    other = make_node()
    other.lease(100 * MIB)
    shutil.copytree(other.directory / "hook/gpulease", node.root / "run/other")
    program = node.start(env={"GPULEASE_HOOK": "/run/other/7/limits"})
    program("os.environ.update(GPULEASE_HOOK='/nowhere', LD_PRELOAD='')")
    assert program("alloc(11 << 20)") == "ENOMEM"
    assert program("in_child('alloc(11 << 20)')") == "ENOMEM"


def test_a_long_environment_hides_nothing(node: Node) -> None:
    """The variable is found after any number of others."""
    node.lease(10 * MIB)
    node.fixed.unlink()
    before = {f"FILLER{number}": "x" * 4000 for number in range(40)}
    assert node.start(env=before | by_variable(node))("alloc(11 << 20)") == "ENOMEM"


def test_a_program_that_renames_itself_stays_in_its_lease(node: Node) -> None:
    """setproctitle() writes over the environment: the variable was read before the program ran."""
    node.lease(10 * MIB)
    node.fixed.unlink()
    program = node.start(env=by_variable(node))
    program(
        "(lambda at: ctypes.memset(at[0], 0, at[1] - at[0]))"
        "([int(field) for field in open('/proc/self/stat').read().rpartition(')')[2].split()[47:49]])"
    )
    assert "GPULEASE_HOOK" not in program("open('/proc/self/environ').read()")
    assert program("alloc(11 << 20)") == program("in_child('alloc(11 << 20)')") == "ENOMEM"


def test_named_limits_that_are_not_there_grant_nothing(node: Node) -> None:
    """A sandbox hides them, or the lease has ended: no VRAM, and stderr says why."""
    node.lease(10 * MIB)
    node.fixed.unlink()
    program = node.start(env={"GPULEASE_HOOK": "/run/nodeagent/hook/gpulease/8/limits"})
    assert [program("alloc(4096)"), program("gem(4096)"), program("queue()")] == ["ENOMEM"] * 3
    assert "/8/limits: the lease's limits are not there" in program.close()


@pytest.mark.root
@pytest.mark.way_out("a limits file of one's own", tier="hook", outcome="not believed; no VRAM is granted")
def test_a_file_of_a_user_is_no_lease(node: Node) -> None:
    """Limits that a user wrote are not believed: nothing is granted, and stderr says why (threat 11)."""
    node.lease(10 * MIB)
    node.fixed.unlink()
    forged = node.directory / "forged"
    shutil.copy(node.files.limits_path(LEASE), forged)
    os.chown(forged, USER, USER)
    program = node.start(env={"GPULEASE_HOOK": str(forged)}, user=USER)
    assert program("alloc(4096)") == "ENOMEM"
    assert "limits are not root's" in program.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:-1],
        lambda raw: raw + b"\0",
        lambda raw: b"X" + raw[1:],
        lambda raw: raw[:8] + b"\2" + raw[9:],
        lambda raw: raw[:28] + b"\xff" + raw[29:],
        lambda raw: b"",
        lambda raw: bytes(len(raw)),
    ],
)
def test_damaged_limits_grant_nothing(node: Node, damage) -> None:
    """Limits that are not whole and of this version are not believed."""
    node.lease(10 * MIB)
    node.fixed.chmod(0o644)
    node.fixed.write_bytes(damage(node.fixed.read_bytes()))
    program = node.start()
    assert [program("alloc(4096)"), program("gem(4096)"), program("queue()")] == ["ENOMEM"] * 3
    assert program("alloc(4096, GPU, 2)") == 1


def test_limits_that_others_may_write_grant_nothing(node: Node) -> None:
    """Mode 0664 is not root's alone."""
    node.lease(10 * MIB)
    node.fixed.chmod(0o664)
    assert node.start()("alloc(4096)") == "ENOMEM"


def test_a_link_or_a_pipe_is_no_limits_file(node: Node) -> None:
    """Neither is followed or waited for."""
    node.lease(10 * MIB)
    node.fixed.rename(node.fixed.with_name("aside"))
    node.fixed.symlink_to("aside")
    assert node.start()("alloc(4096)") == "ENOMEM"
    node.fixed.unlink()
    os.mkfifo(node.fixed, 0o444)
    assert node.start()("alloc(4096)") == "ENOMEM"


@pytest.mark.cgroup2
@pytest.mark.parametrize(
    "path",
    [
        "gpulease_t.slice/gpulease_t-7.slice",
        "gpulease_t.slice/gpulease_t-7.slice/inner",
        "job_3/gpulease_t-7.slice",
    ],
)
def test_the_cgroup_names_the_lease(node: Node, own_cgroup, cgroup2, path: str) -> None:
    """Without a fixed file the innermost lease's cgroup finds the limits, with nothing in the environment."""
    node.lease(10 * MIB)
    node.fixed.unlink()
    (node.directory / "hook/gpulease").rename(node.directory / "hook/gpulease_t")
    cgroup = own_cgroup(cgroup2, path)
    program = node.start("sh", "-c", f'echo $$ > {cgroup}/cgroup.procs; exec env -i "$@"', "sh")
    try:
        assert program("alloc(11 << 20)") == "ENOMEM"
        assert program("alloc(10 << 20)") == 1
    finally:
        program.close()
        (node.directory / "hook/gpulease_t").rename(node.directory / "hook/gpulease")


@pytest.mark.root
@pytest.mark.way_out(
    "a second uid inside the lease", tier="hook", outcome="granted nothing, where the lease demands a fence"
)
def test_another_users_usage_file_stays_closed(node: Node) -> None:
    """A second uid in a strict lease cannot open the holder's file: it is granted nothing."""
    node.lease(10 * MIB, uid=USER)
    assert node.start(user=USER)("alloc(10 << 20)") == 1
    assert node.start(user=USER + 1)("alloc(4096)") == "ENOMEM"


@pytest.mark.root
@pytest.mark.way_out(
    "rewriting, deleting or replacing the hook's files",
    tier="hook",
    outcome="the limits are root's, and neither file can be removed or replaced",
)
def test_a_holder_cannot_change_the_limits(node: Node) -> None:
    """The limits are root's; the usage file cannot be replaced, only spoiled (threat 11)."""
    node.lease(10 * MIB, uid=USER)
    holder = node.start(user=USER)
    limits, usage = node.files.limits_path(LEASE), node.usage
    assert holder(f"open({str(limits)!r}, 'r+')") == "EACCES"
    assert holder(f"os.unlink({str(limits)!r})") == "EACCES"
    assert holder(f"os.unlink({str(usage)!r})") == "EACCES"
    assert holder(f"os.rename({str(usage)!r}, '/tmp/x')") in ("EACCES", "EXDEV")
    assert holder("alloc(11 << 20)") == "ENOMEM"


@pytest.mark.root
def test_a_setuid_program_is_left_alone(node: Node) -> None:
    """Under ld.so.preload the hook is in every program; in a setuid one it does nothing (threat 22)."""
    node.lease(10 * MIB, uid=USER)
    (node.root / "etc/ld.so.preload").write_text(f"{node.library}\n")
    python = node.root / "run/python3"
    shutil.copy("/usr/bin/python3", python)
    python.chmod(0o4755)
    words = "/run/python3 -IS " + str(node.directory / "gpu.py")
    program = node.start("sh", "-c", f"exec {words}", preload=False, user=USER)
    assert program("os.geteuid()") == 0
    assert program("alloc(11 << 20)") == 1
    python.chmod(0o755)
    assert node.start("sh", "-c", f"exec {words}", preload=False, user=USER)("alloc(11 << 20)") == "ENOMEM"


@pytest.mark.root
@pytest.mark.userns
@pytest.mark.parametrize("mapping", ["--map-current-user", "--map-root-user"])
@pytest.mark.way_out("a user namespace of one's own", tier="hook", outcome="refused over the limit")
def test_a_user_namespace_is_in_the_lease(node: Node, mapping: str) -> None:
    """In a sandbox's user namespace, where root's files look like nobody's, the limits hold as outside."""
    node.lease(10 * MIB, uid=USER)
    program = node.start("unshare", "--user", mapping, user=USER)
    assert program("alloc(10 << 20)") == 1
    assert program("alloc(4096)") == "ENOMEM"
    assert node.start(user=USER)("alloc(4096)") == "ENOMEM"


@pytest.mark.root
def test_nobodys_file_is_not_roots(node: Node) -> None:
    """Outside a user namespace a file of uid 65534 is a user's like any other."""
    node.lease(10 * MIB)
    os.chown(node.fixed, 65534, 65534)
    assert node.start()("alloc(4096)") == "ENOMEM"


@pytest.mark.way_out(
    "env -i, unset LD_PRELOAD, where /etc/ld.so.preload names the hook",
    tier="hook",
    outcome="refused over the limit",
)
def test_an_ld_so_preload_file_reaches_programs_without_environment(node: Node) -> None:
    """Mounted at /etc/ld.so.preload the hook is loaded under `env -i`."""
    node.lease(10 * MIB)
    (node.root / "etc/ld.so.preload").write_text(f"{node.library}\n")
    assert node.start("env", "-i", preload=False)("alloc(11 << 20)") == "ENOMEM"
