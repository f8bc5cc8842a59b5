"""The served OpenAPI document and the application agree on whatever is sent, right or wrong."""

from __future__ import annotations

import os

import pytest
import schemathesis
from schemathesis import engine
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events

from nodeagent.api.app import ApiSettings, create_app

EXAMPLES = 300 if os.environ.get("NODEAGENT_HYPOTHESIS") == "long" else 10


@pytest.fixture(params=[0, 1000], ids=["root", "user"])
def description(request, agent, clock, caller_of):
    """The application's own description of itself, as it serves it to an administrator and to a user."""
    agent.add(1000)
    caller = caller_of(request.param)
    app = create_app(agent, lambda environ: caller, ApiSettings(clock=clock, version="0.1.0"))
    config = SchemathesisConfig.from_dict(
        {
            "generation": {"max-examples": EXAMPLES, "database": "none"},
            # An ended lease stays readable on purpose: it says how it ended.
            "checks": {"use_after_free": {"enabled": False}},
        }
    )
    return schemathesis.openapi.from_wsgi("/openapi.json", app, config=config)


def complaints(event):
    """What one event of a run has found wrong, with how to see it again."""
    if isinstance(event, events.NonFatalError | events.FatalError):
        yield f"{event!r}"
    if isinstance(event, events.ScenarioFinished):
        for checks in event.recorder.checks.values():
            for check in checks:
                if check.failure_info is not None:
                    why, how = check.failure_info.failure, check.failure_info.code_sample
                    yield f"{event.recorder.label}: {why.title}: {why.message}\n{how}"


@pytest.mark.timeout(600)
def test_whatever_is_sent_the_answer_is_as_described(description):
    """No 5xx, no undescribed status, header, type or body; what is right is taken, what is wrong refused."""
    calls, found = 0, []
    for event in engine.from_schema(description).execute():
        found += complaints(event)
        if isinstance(event, events.ScenarioFinished):
            calls += len(event.recorder.interactions)
    assert not found, f"{len(found)} of {calls} calls:\n" + "\n\n".join(dict.fromkeys(found))
    assert calls > 500
