"""What differs between two readings of the settings, and what of it holds only from a start on."""

from __future__ import annotations

from nodeagent.config.sections import Config

# An open socket and an open ledger stay what they are.
AT_START = ("server.socket", "state.directory")


def changed(before: Config, after: Config) -> tuple[str, ...]:
    """The keys whose values differ, as ``section.name``."""
    return tuple(
        f"{section}.{name}"
        for section in Config.model_fields
        for name in type(getattr(after, section)).model_fields
        if getattr(getattr(before, section), name) != getattr(getattr(after, section), name)
    )
