"""Users are taken out of a report, and told apart."""

from __future__ import annotations

import pytest

from nodeagent.domain.masking import Mask


def test_one_user_has_one_name_everywhere() -> None:
    """In numbers, texts and cgroups; root stays root."""
    mask = Mask()
    assert mask.value({"uid": 1000, "other": {"uids": [0, 1001]}}) == {
        "uid": "user-1",
        "other": {"uids": [0, "user-2"]},
    }
    assert mask.text("/user.slice/user-1001.slice/user@1000.service") == (
        "/user.slice/user-user-2.slice/user@user-1.service"
    )
    assert mask.value("uid 1000 uses the device") == "uid user-1 uses the device"


def test_what_users_chose_is_masked() -> None:
    """Names of holders, requests, programs and containers, however deep; figures stay."""
    told = {"data": {"in_the_way": [{"pid": 7, "name": "secret", "container": "c0ffee"}], "used_bytes": 1000}}
    shown = Mask().value({**told, "holder_id": "secret", "request_id": "secret"})
    assert "secret" not in repr(shown) and "c0ffee" not in repr(shown)
    assert shown["data"]["used_bytes"] == 1000 and shown["data"]["in_the_way"][0]["pid"] == 7


def test_the_kernels_word_for_a_program_is_masked() -> None:
    """The driver's faults name it."""
    line = "amdgpu 0000:c1:00.0: [gfxhub] page fault, Process secret pid 7 thread secret2 pid 8"
    shown = Mask().text(line)
    assert "secret" not in shown and "pid 7" in shown


@pytest.mark.parametrize(
    "line",
    [
        "amdgpu 0000:c1:00.0: amdgpu:  Process my secret one pid 7 thread my secret:cs0 pid 8",
        "[Mon Nov 30 19:00:00 2026] my secret[4242]: segfault at 0 ip 0 sp 0 error 4 in libamdgpu.so[5+1]",
        "[Mon Nov 30 19:00:00 2026] traps: my secret[4242] trap invalid opcode ip:5 sp:7 in amdgpu_top[5+1]",
        "CPU: 3 PID: 77 Comm: my secret PID: 77 amdgpu",
        "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/dmem,task_memcg=/x,pid=7,uid=31337",
        "Killed process 7, UID:31337 dmem",
    ],
)
def test_a_name_with_spaces_is_masked_and_a_uid_in_any_spelling(line: str) -> None:
    """As programs may be called what they like, and as each part of the kernel writes it."""
    shown = Mask().text(line)
    assert "secret" not in shown and "31337" not in shown


def test_off_it_changes_nothing() -> None:
    """`--full`."""
    told = {"uid": 1000, "name": "x", "path": "user-1000.slice"}
    assert Mask(off=True).value(told) == told
