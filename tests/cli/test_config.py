"""The settings: strict when checked, lenient at a start, and never from a file that others can write."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nodeagent import config
from nodeagent.cli.main import cli
from nodeagent.domain.errors import InvalidField


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "nodeagent.toml"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)
    return path


def test_an_absent_file_means_every_default(tmp_path: Path) -> None:
    """Without a file the agent runs on its defaults."""
    assert config.check(tmp_path / "none") == (config.Config(), [])


def test_a_given_key_is_taken(tmp_path: Path) -> None:
    """What the file says holds, and the rest keeps its default."""
    settings, complaints = config.check(written(tmp_path, "[limits]\nlive_leases = 3\n"))
    assert (settings.limits.live_leases, settings.limits.queued_leases, complaints) == (3, 8, [])


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[limits]\nlive_lease = 3\n", "limits.live_lease"),
        ("[limit]\nlive_leases = 3\n", "limit"),
        ("limits = 3\n", "limits"),
        ("[limits]\nlive_leases = 0\n", "limits.live_leases"),
        ("[limits]\nlive_leases = 'many'\n", "limits.live_leases"),
        ("[privacy]\nleases = 'closed'\n", "privacy.leases"),
        ("[devices]\nshares = 2\n", "devices.shares"),
        ("[devices.shares]\ngfx942 = 0\n", "devices.shares.gfx942"),
        ("[devices.shares]\n'*' = 'few'\n", "devices.shares.*"),
        ("[devices]\non_uncorrectable = 'kill'\n", "devices.on_uncorrectable"),
        ("[devices]\non_link_degraded = true\n", "devices.on_link_degraded"),
    ],
)
def test_a_wrong_key_is_named_and_dropped(tmp_path: Path, text: str, key: str) -> None:
    """A wrong key or value is named in full, and its default holds, so that a start goes on."""
    settings, complaints = config.check(written(tmp_path, text))
    assert [complaint.split(":")[0] for complaint in complaints] == [key]
    assert settings == config.Config()


@pytest.mark.parametrize(
    ("text", "left", "complaint"),
    [
        ("reserved = 3", {"*": []}, "devices.reserved: "),
        ("reserved = { gfx942 = 'user:0' }", {"gfx942": []}, "devices.reserved.gfx942: "),
        (
            "reserved = { '*' = ['user:no-such-user', 'kind:pod', 'group:0', 'alice', 7] }",
            {"*": ["group:0"]},
            "devices.reserved.*.0: there is no user no-such-user on this node",
        ),
        (
            "reserved = { '*' = ['group:no-such-group'] }",
            {"*": []},
            "devices.reserved.*.0: there is no group",
        ),
    ],
)
def test_a_wrong_reservation_lets_nobody_in(tmp_path: Path, text: str, left: Any, complaint: str) -> None:
    """What was to be kept for some stays shut to the others, whatever is mistyped."""
    settings, complaints = config.check(written(tmp_path, f"[devices]\n{text}\n"))
    assert settings.devices.reserved == left
    assert complaints[0].startswith(complaint)
    assert complaints[-1] == "devices.reserved: what is wrong there admits nobody until it is mended"


@pytest.mark.parametrize(
    "text",
    [
        'tokenfile = "/etc/nodeagent/web.token"',
        "token_file = 5",
        'hosts = ["http://x"]',
        "remote = 'maybe'",
    ],
)
def test_nothing_is_served_by_tcp_with_a_typo_beside(tmp_path: Path, text: str) -> None:
    """A wrong key in [web] opens no listener: the token that was meant might be what was mistyped."""
    settings, complaints = config.check(written(tmp_path, f'[web]\nlisten = "127.0.0.1:9440"\n{text}\n'))
    assert settings.web.listen == ""
    assert complaints[0].startswith("web.") and complaints[-1].startswith("web.listen: nothing is served")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('listen = "192.0.2.1:9440"', "set remote = true"),
        ('listen = "0.0.0.0:9440"', "set remote = true"),
        ('listen = "[::]:9440"\nremote = true', "token_file: has to be set"),
        ('listen = "localhost:9440"', "numeric address"),
        ('listen = "9440"', "numeric address"),
    ],
)
def test_other_hosts_are_served_on_purpose_and_with_a_token_only(tmp_path: Path, text: str, why: str) -> None:
    """An address that is no loopback one needs `remote` and a token; names are not looked up."""
    settings, complaints = config.check(written(tmp_path, f"[web]\n{text}\n"))
    assert settings.web.listen == "" and why in complaints[0]


def test_an_unknown_admin_group_is_named_with_the_fix(tmp_path: Path) -> None:
    """`config check` exits 2; a start goes on, and nobody but root administers."""
    path = written(tmp_path, '[server]\nadmin_group = "no-such-group"\nthreads = 8\n')
    done = CliRunner().invoke(cli, ["config", "check", "--config", str(path)])
    assert done.exit_code == 2
    assert "server.admin_group: there is no group no-such-group" in done.stderr
    assert "groupadd --system no-such-group" in done.stderr
    settings, _ = config.check(path)
    assert (settings.server.admin_group, settings.server.threads) == ("", 8)


@pytest.mark.parametrize("group", ["root", "0", "4321"])
def test_a_group_is_a_name_or_a_number(tmp_path: Path, group: str) -> None:
    """A number needs no name on this node."""
    settings, complaints = config.check(written(tmp_path, f'[server]\nadmin_group = "{group}"\n'))
    assert (settings.server.admin_group, complaints) == (group, [])
    assert config.gid_of(group) == int(group.replace("root", "0"))


def test_one_wrong_key_leaves_the_others(tmp_path: Path) -> None:
    """Beside a wrong key the right ones still hold."""
    text = "[limits]\nlive_leases = 3\nqueue = 1\n[release]\ntimeout_seconds = 5\n"
    settings, complaints = config.check(written(tmp_path, text))
    assert (settings.limits.live_leases, settings.release.timeout_seconds, len(complaints)) == (3, 5.0, 1)


def test_garbled_toml_is_refused_by_name(tmp_path: Path) -> None:
    """A file that is no TOML is named, with the place."""
    path = written(tmp_path, "[limits\n")
    with pytest.raises(InvalidField, match="no valid TOML"):
        config.check(path)


def test_a_file_that_others_can_write_is_refused(tmp_path: Path) -> None:
    """Settings feed a root daemon, so a file that a group can write is not read."""
    path = written(tmp_path, "")
    path.chmod(0o664)
    with pytest.raises(InvalidField, match="writable by nobody else"):
        config.check(path)


@pytest.mark.root
def test_another_users_file_is_refused(tmp_path: Path) -> None:
    """A file of another user's is not read by root."""
    path = written(tmp_path, "")
    os.chown(path, 64_321, 64_321)
    with pytest.raises(InvalidField, match="belong to root"):
        config.check(path)


def test_show_prints_what_check_reads(tmp_path: Path) -> None:
    """`config show` is a file that `config check` finds well and that means the same."""
    shown = CliRunner().invoke(cli, ["config", "show", "--config", str(written(tmp_path, ""))]).output
    assert set(tomllib.loads(shown)) == set(config.Config.model_fields) - set(config.TABLES)
    assert config.check(written(tmp_path, shown)) == (config.Config(), [])


def test_show_names_where_a_value_comes_from(tmp_path: Path) -> None:
    """What the file sets, be it the default, has the file's name behind it; nothing else has one."""
    path = written(tmp_path, '[server]\nthreads = 16\n[slurm]\ngres_conf = "/a \\"b\\" \\\\c"\n')
    shown = CliRunner().invoke(cli, ["config", "show", "--config", str(path)]).output
    assert [line for line in shown.splitlines() if " # from " in line] == [
        f"threads = 16  # from {path}",
        f'gres_conf = "/a \\"b\\" \\\\c"  # from {path}',
    ]
    assert tomllib.loads(shown)["slurm"]["gres_conf"] == '/a "b" \\c'


def test_check_fails_on_a_wrong_key(tmp_path: Path) -> None:
    """`config check` exits 2 and names the key."""
    path = written(tmp_path, "[servers]\n")
    done = CliRunner().invoke(cli, ["config", "check", "--config", str(path)])
    assert done.exit_code == 2
    assert "servers: unknown key" in done.stderr


@pytest.mark.parametrize("line", ['memory = "kernal"', 'memroy = "supervised"', "memory = 1"])
def test_a_mistyped_floor_demands_the_strongest(tmp_path: Path, line: str) -> None:
    """No typo grants what the site meant to refuse; the complaint says so."""
    settings, complaints = config.check(written(tmp_path, f"[guarantee]\n{line}\n"))
    assert settings.guarantee.memory == "kernel"
    assert any('is "kernel" until' in one for one in complaints)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("usr = 'x'\nuser = 0\nleases = 1", "quota.1.usr: unknown key"),
        (
            "user = 'no-such-user'\nkind = 'process'\nleases = 1",
            "quota.1.user: there is no user no-such-user",
        ),
        ("not_user = ['no-such-user']\nkind = 'slurm'\nleases = 1", "quota.1.not_user: there is no user"),
        ("group = 'no-such-group'\nleases = 1", "quota.1.group: there is no group no-such-group"),
        ("group = true\nleases = 1", "quota.1.group"),
        ("account = 'a b'\nleases = 1", "quota.1.account: 'a b' is no name"),
        ("account = 'physics'\nkind = 'docker'\nleases = 1", "quota.1: account: only jobs have one"),
        ("kind = 'vm'\nleases = 1", "quota.1.kind"),
        ("user = 0\nleases = -1", "quota.1.leases"),
        ("user = 0\nvram = '1 GB '", "quota.1.vram: '1 GB ' is no size"),
        ("user = 0", "quota.1: limits nothing"),
        ("leases = 1", "quota.1: says of nobody"),
    ],
)
def test_a_wrong_quota_is_named_and_left_out(tmp_path: Path, text: str, complaint: str) -> None:
    """One mistake leaves that quota out, which would hold for others without a part; the rest stays."""
    around = "[[quota]]\nuser = 0\nleases = {}\n"
    settings, complaints = config.check(
        written(tmp_path, f"{around.format(1)}[[quota]]\n{text}\n{around.format(2)}")
    )
    assert complaints[0].startswith(complaint)
    assert [one.leases for one in settings.quota] == [1, 2]


def test_a_shown_quota_is_read_again(tmp_path: Path) -> None:
    """`config show` prints each quota as a table that means the same."""
    path = written(tmp_path, '[[quota]]\nuser = "*"\nvram = "1G"\n[[quota]]\ngroup = 0\ncus = 4\n')
    shown = CliRunner().invoke(cli, ["config", "show", "--config", str(path)]).output
    assert f'vram = "1G"  # from {path}' in shown
    assert config.check(written(tmp_path, shown))[0].quota == config.check(path)[0].quota != []
    assert [one.name for one in config.check(path)[0].quota] == ["each user", "group 0"]


def test_a_group_has_those_that_the_databases_list() -> None:
    """By name in the group's line, or by their own first group; an unknown group has nobody."""
    assert 0 in config.members_of(0)
    assert config.members_of(4_000_000_000) == frozenset()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("max_cu = 1", "classes.big.max_cu: unknown key"),
        ("users = ['no-such-user']", "classes.big.users: there is no user"),
        ("groups = ['no-such-group']", "classes.big.groups: there is no group"),
        ("kinds = ['vm']", "classes.big.kinds"),
        ("vram = '101%'", "classes.big.vram: '101%' is no share"),
        ("vram = 'much'", "classes.big.vram: 'much' is no size"),
        ("cu = 0", "classes.big.cu: 0 is no number of CUs"),
        ("cu = 'many'", "classes.big.cu"),
        ("cu = 'shared'", 'classes.big: cu: "shared" needs vram'),
        ("ttl_seconds = 9\nmax_ttl_seconds = 8", "classes.big: ttl_seconds: is longer"),
        ("require = { memory = 'steel' }", "classes.big.require: 'steel' is not a valid Memory"),
        ("require = { speed = 'high' }", "classes.big.require: speed is nothing that can be demanded"),
        ("priority = 'highest'", "classes.big.priority"),
    ],
)
def test_a_wrong_class_is_named_and_left_out(tmp_path: Path, text: str, complaint: str) -> None:
    """One mistake leaves that class out, which could be anybody's without a part; the rest stays."""
    site = f"[classes.small]\nmax_cus = 4\n[classes.big]\n{text}\n"
    settings, complaints = config.check(written(tmp_path, site))
    assert complaints[0].startswith(complaint)
    assert list(settings.classes) == ["small"]


def test_a_shown_class_is_read_again(tmp_path: Path) -> None:
    """`config show` prints each class as a table that means the same; a name that is none is refused."""
    path = written(tmp_path, '[classes.big]\ncu = "25%"\nrequire = { memory = "hook" }\n')
    shown = CliRunner().invoke(cli, ["config", "show", "--config", str(path)]).output
    assert config.check(written(tmp_path, shown))[0].classes == config.check(path)[0].classes != {}
    assert config.check(written(tmp_path, "[classes.BIG]\n"))[0].classes == {}


def test_the_settings_are_there_for_programs(tmp_path: Path) -> None:
    """`config show --json` has every value, which of them the file set, and what of it was ignored."""
    path = written(tmp_path, "[limits]\nlive_leases = 3\nlive_leass = 4\n[[quota]]\nuser = 0\nleases = 1\n")
    done = CliRunner().invoke(cli, ["config", "show", "--config", str(path), "--json"])
    told = json.loads(done.stdout)
    assert (told["path"], told["set"]) == (str(path), ["limits.live_leases", "quota"])
    assert told["settings"]["limits"]["live_leases"] == 3
    assert told["settings"]["server"]["socket"] == "/run/nodeagent/api.sock"
    assert [one.partition(":")[0] for one in told["ignored"]] == ["limits.live_leass"]
