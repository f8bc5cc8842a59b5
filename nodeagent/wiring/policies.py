"""What the settings say, in the words of the use cases."""

from __future__ import annotations

from nodeagent import config as settings
from nodeagent.domain.device_rules import DeviceRules
from nodeagent.domain.guarantee import Memory, Requirement
from nodeagent.domain.request import Priority
from nodeagent.domain.reserved import Reserved
from nodeagent.service.anchoring import AnchorLimits
from nodeagent.service.quotas import QuotaLimits
from nodeagent.service.watch import WatchPolicy


def floor(config: settings.Config) -> Requirement:
    """What every lease of the node is held by at least."""
    return Requirement(memory=Memory(config.guarantee.memory))


def watch_policy(config: settings.Config) -> WatchPolicy:
    """How often is looked, and what becomes of over-use."""
    watch = config.watch
    return WatchPolicy(
        watch.seconds, watch.on_overuse == "kill", watch.tolerance_percent, watch.stalled_seconds
    )


def anchor_limits(config: settings.Config) -> AnchorLimits:
    """How long leases live that say nothing, and at most."""
    defaults = config.defaults
    return AnchorLimits(defaults.ttl_seconds, defaults.max_ttl_seconds, defaults.start_seconds)


def quota_limits(config: settings.Config) -> QuotaLimits:
    """What one user may have at once."""
    limits = config.limits
    return QuotaLimits(limits.live_leases, limits.queued_leases, limits.grants_per_second)


def device_rules(config: settings.Config) -> DeviceRules:
    """What the site says of single devices; names become numbers here."""
    reserved = {
        key: Reserved.of(parties, settings.uid_of, settings.gid_of)
        for key, parties in config.devices.reserved.items()
    }
    return DeviceRules(config.devices.shares, reserved)


def most_queue_priority(config: settings.Config) -> Priority:
    """The most that users may ask for their hardware queues."""
    return Priority(config.limits.queue_priority)
