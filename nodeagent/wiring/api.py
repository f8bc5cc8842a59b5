"""The API over the use cases, as the settings want it."""

from __future__ import annotations

from flask import Flask

from nodeagent import __version__
from nodeagent import config as settings
from nodeagent.adapters.clock import SystemClock
from nodeagent.adapters.subuids import Subuids
from nodeagent.api.app import ApiSettings, create_app
from nodeagent.api.browsers import LOOPBACK, BrowserCheck
from nodeagent.api.waits import WaitingRoom
from nodeagent.api.web import WebSettings
from nodeagent.service.agent import Agent
from nodeagent.wiring.callers import identifier


def build_api(config: settings.Config, agent: Agent, clock: SystemClock, web: WebSettings | None) -> Flask:
    """The WSGI application; *web*: what is served by TCP as well, if anything is."""
    return create_app(
        agent,
        identifier(settings.gid_of(config.server.admin_group)),
        ApiSettings(
            clock,
            __version__,
            leases_open=config.privacy.leases == "open",
            waiting=WaitingRoom(owner_of=Subuids().owner),
            web=web,
            lease_metrics=config.metrics.leases,
            browsers=BrowserCheck(LOOPBACK | (web.names if web else frozenset())),
        ),
    )
