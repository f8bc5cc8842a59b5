"""Metrics, as a scraper reads them."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from nodeagent.api.app import ApiSettings, create_app
from nodeagent.domain.measures import Measures, Sensors, Use
from nodeagent.service.histogram import Histogram

from .conftest import identify

DEVICE = ("0000:c1:00.0/0", "AMD Instinct MI300X")
MEASURED = Measures(look_age_seconds=2.5, over=frozenset({1001}))


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
    agent.outcome, agent.measured = refusal, MEASURED
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

    assert found["nodeagent_leases_over_grant",] == 1
    assert found["nodeagent_look_age_seconds",] == 2.5


def test_what_is_used_is_of_the_last_look(user, agent):
    """Queues, busy CUs and evictions of all processes of a device; what is unknown is not there."""
    agent.found = replace(agent.found, devices=agent.found.devices[:1])
    agent.measured = replace(
        MEASURED, use={(1001, DEVICE[0]): Use(4096, 3, 16, 1500), (None, DEVICE[0]): Use(1, 1, None, 500)}
    )
    found = samples(user.get("/metrics"))
    assert found["nodeagent_device_queues", *DEVICE] == 4
    assert found["nodeagent_device_busy_cus", *DEVICE] == 16
    assert found["nodeagent_device_evicted_seconds", *DEVICE] == 2
    agent.measured = MEASURED
    assert ("nodeagent_device_busy_cus", *DEVICE) not in samples(user.get("/metrics"))


def test_a_cards_sensors_have_hamis_names(user, agent):
    """Each card is told once, with HAMi's labels; a sensor that gives nothing has no sample."""
    agent.measured = replace(MEASURED, sensors={agent.found.devices[0].pci: Sensors(7, 42, None, 99.5)})
    found = samples(user.get("/metrics"))
    device = agent.found.devices[0]
    host = (device.key, str(device.ordinal), device.product, device.uuid or "", "gpu01")
    assert found["hami_host_gpu_memory_used_bytes", *host] == 7
    assert found["hami_host_gpu_utilization_ratio", *host] == 42
    assert found["hami_host_gpu_power_usage_watts", *host] == 99.5
    assert not [name for name in found if name[0] == "hami_host_gpu_temperature_celsius"]
    cards = {one.pci for one in agent.found.devices}
    assert len({name for name in found if name[0] == "hami_host_gpu_memory_used_bytes"}) <= len(cards)


def test_times_are_histograms(user, agent):
    """Grants and releases have cumulative buckets, a count and a sum."""
    took = Histogram()
    took.observe(0.02)
    agent.measured = replace(MEASURED, grants=took.buckets())
    found = samples(user.get("/metrics"))
    assert found["nodeagent_grant_seconds_bucket", "0.01"] == 0
    assert found["nodeagent_grant_seconds_bucket", "0.025"] == 1
    assert (found["nodeagent_grant_seconds_count",], found["nodeagent_grant_seconds_sum",]) == (1, 0.02)


def test_leases_are_there_where_they_are_wanted(agent, clock, client_of, user):
    """With [metrics] leases each has what it holds and uses, by its number alone; else there is none."""
    agent.add(1000)
    agent.measured = replace(MEASURED, use={(1001, DEVICE[0]): Use(2 << 30, 3, 16, 1500)})
    assert "1001" not in user.get("/metrics").text
    settings = ApiSettings(clock=clock, version="0.1.0", lease_metrics=True)
    text = client_of(1000, application=create_app(agent, identify, settings)).get("/metrics")
    found = samples(text)
    lease, vgpu = (DEVICE[0], "1001"), (DEVICE[0], agent.found.devices[0].uuid or "", "1001", "0")
    assert found["hami_vgpu_memory_used_bytes", *vgpu] == 2 << 30
    assert found["hami_vgpu_memory_limit_bytes", *vgpu] == 4 << 30
    assert found["nodeagent_lease_cus", *lease] == 64
    assert found["nodeagent_lease_queues", *lease] == 3
    assert found["nodeagent_lease_evicted_seconds", *lease] == 1.5
    assert "trainer" not in text.text and "job-17" not in text.text


def test_no_label_carries_a_users_text(user, agent):
    """Holder names and request ids are in no metric."""
    agent.add(1000)
    text = user.get("/metrics").text
    assert "trainer" not in text and "job-17" not in text
