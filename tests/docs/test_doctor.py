"""docs/doctor.md is what the code checks."""

from __future__ import annotations

import re

from nodeagent.domain.doctor import CHECKS

from .doctor_table import PAGE, shown, table


def test_the_table_of_checks_is_the_codes() -> None:
    """Each check stands in docs/doctor.md with its fix and its report, and no other does."""
    assert shown(PAGE.read_text(encoding="utf-8")) == table(), "run `make enforcement`"


def test_examples_name_checks_that_exist() -> None:
    """The lines that the page shows are of checks that there are."""
    text = PAGE.read_text(encoding="utf-8").partition("```text\n")[2].partition("```")[0]
    named = set(re.findall(r"^(?:OK|UNSEEN|WARN|FAIL) +([a-z-]+):", text, re.MULTILINE))
    assert named and named <= {one.name for one in CHECKS}
