"""The served OpenAPI document and the application agree on whatever is sent, right or wrong."""

from __future__ import annotations

import contextlib
import os
from collections import Counter

import pytest
import schemathesis
from schemathesis import engine
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events

from nodeagent import config as settings
from nodeagent import wiring
from nodeagent.adapters.cgroup_mount import find_mount
from nodeagent.api.app import ApiSettings, create_app
from nodeagent.api.models import MOST_NAMES

LONG = os.environ.get("NODEAGENT_HYPOTHESIS") == "long"
EXAMPLES = 300 if LONG else 10
FILTERS = ("device", "not_device", "type", "not_type")
# What a right request may meet on an agent that remembers: an ended lease, a request id used before.
STATEFUL = ["2xx", "401", "403", "404", "409", "410", "422", "429"]


def few_names(context, body):
    """JSON Schema bounds each list of names, but not what the lists of all slices may hold together."""
    slices = body.get("slices") if isinstance(body, dict) else None
    if not isinstance(slices, list):
        return True
    lists = [one.get(name) for one in slices if isinstance(one, dict) for name in FILTERS]
    return sum(len(names) for names in lists if isinstance(names, list)) <= MOST_NAMES


@pytest.fixture
def described():
    """An application's own description of itself, as it serves it to one caller."""

    def load(app, **checks):
        # An ended lease stays readable on purpose: it says how it ended.
        checks["use_after_free"] = {"enabled": False}
        generation = {"max-examples": EXAMPLES, "database": "none", "deterministic": not LONG}
        config = SchemathesisConfig.from_dict({"generation": generation, "checks": checks})
        schema = schemathesis.openapi.from_wsgi("/openapi.json", app, config=config)
        schema.hook("filter_body")(few_names)
        return schema

    return load


@pytest.fixture
def whole_agent(tmp_path, caller_of):
    """A whole agent on a simulated machine, started; its leases are released at the end."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    config = settings.Config().overridden(socket=tmp_path / "api.sock", state_dir=state)
    built = wiring.build(config, wiring.simulated_node("mi300x-cpx", state))
    built.start()
    yield built.agent
    root = caller_of(0)
    for lease in built.agent.leases(root, limit=500):
        built.agent.release(root, lease.id, 5)
    built.stop()
    mount = find_mount()
    if mount is not None:
        with contextlib.suppress(FileNotFoundError):
            (mount / wiring.instance(state)).rmdir()


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


def run(description) -> Counter[int]:
    """Every phase of a run; how often each status was answered. Fails with everything that was found."""
    statuses, found = Counter(), []
    for event in engine.from_schema(description).execute():
        found += complaints(event)
        if isinstance(event, events.ScenarioFinished):
            answers = (one.response for one in event.recorder.interactions.values())
            statuses.update(answer.status_code for answer in answers if answer is not None)
    assert not found, f"{len(found)} of {statuses.total()} calls:\n" + "\n\n".join(dict.fromkeys(found))
    return statuses


@pytest.mark.timeout(600)
@pytest.mark.parametrize("uid", [0, 1000])
def test_whatever_is_sent_the_answer_is_as_described(agent, clock, caller_of, described, uid):
    """No 5xx, no undescribed status, header, type or body; what is right is taken, what is wrong refused."""
    agent.add(1000)
    app = create_app(agent, lambda environ: caller_of(uid), ApiSettings(clock=clock, version="0.1.0"))
    assert run(described(app)).total() > 500


@pytest.mark.timeout(600)
@pytest.mark.parametrize("uid", [0, 1000])
def test_the_whole_agent_answers_as_described(whole_agent, caller_of, described, uid):
    """The same of use cases, ledger and discovery on a simulated machine: whatever is sent, never a 5xx."""
    caller = caller_of(uid, pid=os.getpid())
    app = create_app(whole_agent, lambda environ: caller, ApiSettings(whole_agent.clock, "0.1.0"))
    statuses = run(described(app, positive_data_acceptance={"expected-statuses": STATEFUL}))
    assert statuses[422] and not [status for status in statuses if status >= 500]
