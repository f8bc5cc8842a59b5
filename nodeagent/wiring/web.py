"""The read-only TCP listener, as the settings want it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import structlog

from nodeagent import config as settings
from nodeagent.adapters.token_file import read_token
from nodeagent.api.web import WebSettings
from nodeagent.domain.endpoint import Endpoint
from nodeagent.domain.errors import OutsideFault

log = structlog.get_logger()


def build_web(config: settings.Web) -> WebSettings | None:
    """None where there is to be none, or its token is no secret: nothing is served then."""
    if not config.listen:
        return None
    endpoint = Endpoint.parse(config.listen)
    token = partial(read_token, Path(config.token_file)) if config.token_file else None
    try:
        if token is not None:
            token()
    except OutsideFault as fault:
        log.error("no read-only listener", address=config.listen, why=str(fault))
        return None
    return WebSettings(endpoint, endpoint.hosts(config.hosts), token)
