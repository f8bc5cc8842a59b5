"""What differs between two readings of the settings, and what of it holds only from a start on."""

from __future__ import annotations

from nodeagent.config.section import Section
from nodeagent.config.sections import Config

# An open socket and an open ledger stay what they are.
AT_START = ("server.socket", "state.directory")


def changed(before: Config, after: Config) -> tuple[str, ...]:
    """What has another value, as ``section.name``; of sections that are written several times, their name."""
    found: list[str] = []
    for section in Config.model_fields:
        old, new = getattr(before, section), getattr(after, section)
        if isinstance(new, Section):
            names = type(new).model_fields
            found += [f"{section}.{name}" for name in names if getattr(old, name) != getattr(new, name)]
        elif old != new:
            found.append(section)
    return tuple(found)
