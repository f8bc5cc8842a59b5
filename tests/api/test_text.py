"""Answers for shells."""

from __future__ import annotations

import re

import pytest

LINE = re.compile(r"(UNSET=[A-Z][A-Z0-9_]*|[A-Z][A-Z0-9_]*=[A-Za-z0-9,.:/_-]*)")
TEXT = {"Accept": "text/plain"}


def lines(answer):
    assert answer.content_type == "text/plain; charset=utf-8"
    found = answer.text.splitlines()
    assert all(LINE.fullmatch(line) for line in found), found
    return found


def test_a_lease_is_its_environment(user):
    """Values are NAME=VALUE, null is UNSET=NAME, and the lease's id is there once."""
    found = lines(user.post("/v1/leases", json={}, headers=TEXT))
    assert "ROCR_VISIBLE_DEVICES=0" in found
    assert "UNSET=HIP_VISIBLE_DEVICES" in found
    assert "GPULEASE_STATE=active" in found
    assert [line for line in found if line.startswith("GPULEASE_ID=")] == ["GPULEASE_ID=1001"]


@pytest.mark.parametrize(
    "value",
    [
        "a\nexport LD_PRELOAD=/tmp/x",
        "$(id)",
        "`id`",
        "a b",
        "a'b",
        'a"b',
        "\x1b[31m",
        "é",
        "a;b",
        "a&b",
        "x=$y",
    ],
)
def test_what_a_shell_could_act_on_is_left_out(user, agent, value):
    """A value with any other character than the few safe ones does not appear at all."""
    lease = agent.add(1000, environment={"GPULEASE_ID": "1001", "SAFE": "1", "EVIL": value, "a b": "1"})
    found = lines(user.get(f"/v1/leases/{lease.id}", headers=TEXT))
    assert "SAFE=1" in found
    assert not any(line.startswith(("EVIL", "a b")) for line in found)


def test_no_other_holders_text_is_printed_even_to_root(root, agent):
    """A root shell that reads a list sees no name that another user chose."""
    agent.add(1000)
    mine = agent.add(0)
    found = "\n".join(lines(root.get("/v1/leases", headers=TEXT)))
    assert "GPULEASE_LEASES_COUNT=2" in found
    assert "GPULEASE_LEASES_0_MASKED=true" in found and "LEASES_0_HOLDER_ID" not in found
    assert f"GPULEASE_LEASES_1_ID={mine.id}" in found and "GPULEASE_LEASES_1_HOLDER_ID=trainer" in found


@pytest.mark.parametrize("path", ["/v1/node", "/v1/devices", "/v1/events", "/healthz", "/readyz"])
def test_every_answer_has_a_safe_text_form(user, path):
    """Lists and objects are flattened into lines that any loop may read."""
    assert lines(user.get(path, headers=TEXT))


def test_errors_stay_problem_documents(user):
    """An error is a problem document whatever was asked for, so it is never taken for an environment."""
    assert user.get("/v1/leases/7", headers=TEXT).content_type == "application/problem+json"
