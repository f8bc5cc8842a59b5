"""What the site's policy says to the caller."""

from __future__ import annotations

from typing import Any

GIB = 1 << 30


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
