"""`nodeagent doctor`'s checks: judgements alone. What they judge is gathered by nodeagent.doctor."""

from nodeagent.domain.doctor import (
    agent,
    cards,
    cgroups,
    devices,
    driver,
    engines,
    leftovers,
    programs,
    usage,
)
from nodeagent.domain.doctor.check import Check, Facts, Finding, Unseen, examine, worst
from nodeagent.domain.level import Level

# In the order in which one would mend things: below first.
CHECKS: tuple[Check, ...] = (
    *driver.CHECKS,
    *cards.CHECKS,
    *devices.CHECKS,
    *cgroups.CHECKS,
    *programs.CHECKS,
    *engines.CHECKS,
    *agent.CHECKS,
    *usage.CHECKS,
    *leftovers.CHECKS,
)

__all__ = ["CHECKS", "Check", "Facts", "Finding", "Level", "Unseen", "examine", "worst"]
