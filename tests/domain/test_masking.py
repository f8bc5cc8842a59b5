"""Users are taken out of a report, and told apart."""

from __future__ import annotations

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


def test_off_it_changes_nothing() -> None:
    """`--full`."""
    told = {"uid": 1000, "name": "x", "path": "user-1000.slice"}
    assert Mask(off=True).value(told) == told
