"""Metrics, as a scraper reads them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families


def samples(answer):
    assert answer.content_type == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_metrics_are_what_the_agent_says_now(user, agent, refusal):
    """Leases by state, what is free, quarantined slices and refusals by code are read at scrape time."""
    agent.add(1000)
    agent.outcome = refusal
    user.post("/v1/leases", json={})
    user.post("/v1/leases", json={})
    found = samples(user.get("/metrics"))
    assert found["nodeagent_leases", "active"] == 1
    assert found["nodeagent_leases", "queued"] == 0
    device = ("0000:c1:00.0/0", "AMD Instinct MI300X")
    assert found["nodeagent_device_cus", *device] == 304
    assert found["nodeagent_device_free_cus", *device] == 240
    assert found["nodeagent_device_free_vram_bytes", *device] == 186 << 30
    assert found["nodeagent_quarantined_slices", "0000:c1:00.0/0"] == 0
    assert found["nodeagent_refusals_total", "CardInsufficientCore"] == 2
    assert found["nodeagent_ready",] == 1


def test_no_label_carries_a_users_text(user, agent):
    """Holder names and request ids are in no metric."""
    agent.add(1000)
    text = user.get("/metrics").text
    assert "trainer" not in text and "job-17" not in text
