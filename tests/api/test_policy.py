"""What the site's policy says to the caller."""

from __future__ import annotations

from typing import Any

GIB = 1 << 30


def test_the_classes_of_the_caller_are_shown(user: Any) -> None:
    """What each gives and allows; what it does not say is null."""
    (one,) = user.get("/v1/classes").json["classes"]
    assert (one["name"], one["default"], one["max_vram_bytes"], one["max_cus"]) == (
        "notebook",
        True,
        8 * GIB,
        None,
    )


def test_the_class_of_a_request_is_with_its_lease(user: Any, agent: Any) -> None:
    """The order has it, and the name has to be one that a class can have."""
    assert user.post("/v1/leases", json={"class_name": "big"}).status_code == 201
    assert agent.orders[-1][1].request.class_name == "big"
    assert user.post("/v1/leases", json={"class_name": "BIG"}).json["field"] == "class_name"


def test_the_quotas_of_the_caller_are_shown(user: Any) -> None:
    """Each with its name, and of each bounded resource what is used and what is allowed."""
    assert user.get("/v1/quotas").json == {
        "quotas": [
            {
                "name": "each user",
                "bounds": [
                    {"resource": "leases", "used": 1, "most": 4},
                    {"resource": "vram_bytes", "used": 4 * GIB, "most": 48 * GIB},
                ],
            }
        ]
    }
