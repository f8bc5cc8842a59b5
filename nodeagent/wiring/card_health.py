"""Builds what watches the cards' own counters."""

from __future__ import annotations

from functools import partial

from nodeagent import config as settings
from nodeagent.adapters.vitals import read_vitals
from nodeagent.domain.clock import Clock
from nodeagent.domain.vitals import CardRecord, HealthPolicy
from nodeagent.ledger.boot_file import BootFile
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.card_health import CardHealth
from nodeagent.wiring.node import Node
from nodeagent.wiring.state import CARDS


def build_card_health(config: settings.Config, node: Node, ledger: Ledger, clock: Clock) -> CardHealth:
    """Over *node*'s own files; what was known is kept in the state directory."""
    policy = HealthPolicy(
        refuse_uncorrectable=config.devices.on_uncorrectable == "refuse",
        refuse_degraded=config.devices.on_link_degraded == "refuse",
    )
    kept = BootFile(config.state.directory / CARDS, clock, CardRecord.of)
    return CardHealth(ledger, clock, partial(read_vitals, node.tree), kept, policy)
