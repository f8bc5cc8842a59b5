"""What a command's environment is made of."""

from __future__ import annotations

from gpulease.launch import environment_with


def test_the_users_own_preloads_stay_behind_ours() -> None:
    """The lease's library comes first; what the user loads anyway is kept."""
    settings = {"LD_PRELOAD": "/ours.so", "HSA_CU_MASK": None}
    inherited = {"LD_PRELOAD": "/theirs.so", "HSA_CU_MASK": "0:0", "HOME": "/h"}
    assert environment_with(inherited, settings) == {"LD_PRELOAD": "/ours.so:/theirs.so", "HOME": "/h"}
    assert environment_with({}, settings) == {"LD_PRELOAD": "/ours.so"}
