"""The served OpenAPI document and the application agree on whatever is sent, right or wrong."""

from __future__ import annotations

import os

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from nodeagent.api.app import ApiSettings, create_app

LONG = os.environ.get("NODEAGENT_HYPOTHESIS") == "long"
few = settings(max_examples=200 if LONG else 15, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(params=[0, 1000], ids=["root", "user"])
def description(request, agent, clock, caller_of):
    """The application's own description of itself, as it serves it to an administrator and to a user."""
    agent.add(1000)
    caller = caller_of(request.param)
    app = create_app(agent, lambda environ: caller, ApiSettings(clock=clock, version="0.1.0"))
    return schemathesis.openapi.from_wsgi("/openapi.json", app)


api = schemathesis.pytest.from_fixture("description")


@api.parametrize()
@few
def test_whatever_is_sent_the_answer_is_as_described(case):
    """No 5xx, no undescribed status, header, type or body; what is right is taken, what is wrong refused."""
    case.call_and_validate()
