"""Metrics, as a scraper reads them."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from nodeagent.api.app import ApiSettings, create_app
from nodeagent.domain.device import DeviceState
from nodeagent.domain.lease import HolderKind, SliceState
from nodeagent.domain.measures import Measures, PciLink, Sensors, Use
from nodeagent.domain.mode import Bypass, Mode, Modes
from nodeagent.service.histogram import Histogram
from nodeagent.service.orders import BypassView

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


def test_what_the_node_enforces_is_told(user, agent):
    """The version, whether all is bypassed, who is only observed, and what would have come of requests."""
    bypass = BypassView(Bypass(agent.clock.boot_id, 60, 0, 0, "a bad night"), seen=True)
    modes = Modes({HolderKind.SLURM: Mode.OBSERVE})
    usual = agent.node()
    agent.node = lambda: replace(usual, bypass=bypass, modes=modes, observed={("slurm", "granted"): 3})
    found = samples(user.get("/metrics"))
    assert found["nodeagent_info", "0.1.0"] == 1
    assert found["nodeagent_bypassed",] == 1
    assert (found["nodeagent_observed", "slurm"], found["nodeagent_observed", "process"]) == (1, 0)
    assert found["nodeagent_observed_requests_total", "slurm", "granted"] == 3
    agent.node = lambda: usual
    assert samples(user.get("/metrics"))["nodeagent_bypassed",] == 0


def test_what_devices_have_is_told(user, agent):
    """Sizes, queue slots, what others use, and what a slice that is not proved clean keeps back."""
    first, second = agent.found.devices
    sick = replace(second, state=DeviceState.UNHEALTHY)
    agent.found = replace(agent.found, devices=(replace(first, foreign_bytes=5 << 30, shares=7), sick))
    lease = agent.add(1000)
    agent.known[lease.id] = replace(
        lease, slices=tuple(replace(one, state=SliceState.QUARANTINED) for one in lease.slices)
    )
    found = samples(user.get("/metrics"))
    assert found["nodeagent_device_grantable_vram_bytes", *DEVICE] == 190 << 30
    assert found["nodeagent_device_foreign_vram_bytes", *DEVICE] == 5 << 30
    assert found["nodeagent_device_queue_slots", *DEVICE] == 24
    assert found["nodeagent_device_free_queue_slots", *DEVICE] == 22
    assert found["nodeagent_device_free_shares", *DEVICE] == 6
    assert found["nodeagent_device_healthy", *DEVICE] == 1
    assert found["nodeagent_device_healthy", sick.key, sick.product] == 0
    assert found["nodeagent_quarantined_slices", first.key] == 1
    assert found["nodeagent_quarantined_vram_bytes", first.key] == 4 << 30


def test_what_is_looked_at_hourly_is_told(user, agent):
    """Idle VRAM and its drift, a card's link and temperature, and what the kernel's log said of it."""
    device = agent.found.devices[0]
    agent.measured = replace(
        MEASURED,
        idle_bytes={device.pool: 300 << 20},
        drift_bytes={device.pool: 40 << 20},
        links={device.pci: PciLink(8, 16, 16.0, 32.0)},
        sensors={device.pci: Sensors(celsius=61.5)},
        faults={(device.pci, "ring_timeout"): 2},
        log_lost=1,
    )
    found = samples(user.get("/metrics"))
    assert found["nodeagent_device_idle_vram_bytes", *DEVICE] == 300 << 20
    assert found["nodeagent_device_idle_drift_bytes", *DEVICE] == 40 << 20
    assert found["nodeagent_pcie_link_width", device.pci] == 8
    assert found["nodeagent_pcie_link_max_width", device.pci] == 16
    assert found["nodeagent_pcie_link_gigatransfers", device.pci] == 16
    assert 61.5 in [value for name, value in found.items() if name[0] == "hami_host_gpu_temperature_celsius"]
    assert sorted(value for name, value in found.items() if name[0] == "nodeagent_kernel_faults_total") == [2]
    assert found["nodeagent_kernel_log_lost_total",] == 1


def test_times_are_histograms(user, agent):
    """Grants and releases have cumulative buckets, a count and a sum."""
    took = Histogram()
    took.observe(0.02)
    agent.measured = replace(MEASURED, grants=took.buckets(), releases=took.buckets())
    found = samples(user.get("/metrics"))
    assert found["nodeagent_grant_seconds_bucket", "0.01"] == 0
    assert found["nodeagent_grant_seconds_bucket", "0.025"] == 1
    for name in ("nodeagent_grant_seconds", "nodeagent_release_seconds"):
        assert (found[f"{name}_count",], found[f"{name}_sum",]) == (1, 0.02)


def test_leases_are_there_where_they_are_wanted(agent, clock, client_of, user):
    """With [metrics] leases each has what it holds and uses, by its number alone; else there is none."""
    agent.add(1000)
    use = {(1001, DEVICE[0]): Use(2 << 30, 3, 16, 1500)}
    agent.measured = replace(MEASURED, use=use, idle_seconds={1001: 61.5})
    assert "1001" not in user.get("/metrics").text
    settings = ApiSettings(clock=clock, version="0.1.0", lease_metrics=True)
    text = client_of(1000, application=create_app(agent, identify, settings)).get("/metrics")
    found = samples(text)
    lease, vgpu = (DEVICE[0], "1001"), (DEVICE[0], agent.found.devices[0].uuid or "", "1001", "0")
    assert found["hami_vgpu_memory_used_bytes", *vgpu] == 2 << 30
    assert found["hami_vgpu_memory_limit_bytes", *vgpu] == 4 << 30
    assert found["nodeagent_lease_cus", *lease] == 64
    assert found["nodeagent_lease_busy_cus", *lease] == 16
    assert found["nodeagent_lease_queue_slots", *lease] == 2
    assert found["nodeagent_lease_queues", *lease] == 3
    assert found["nodeagent_lease_evicted_seconds", *lease] == 1.5
    assert found["nodeagent_lease_idle_seconds", "1001"] == 61.5
    assert "trainer" not in text.text and "job-17" not in text.text


def test_no_label_carries_a_users_text(user, agent):
    """Holder names and request ids are in no metric."""
    agent.add(1000)
    text = user.get("/metrics").text
    assert "trainer" not in text and "job-17" not in text


def test_uncorrectable_errors_are_told_by_card(user, agent):
    """Of cards that count them, those that were acknowledged included."""
    agent.measured = replace(MEASURED, uncorrectable={"0000:c1:00.0": 3})
    found = samples(user.get("/metrics"))
    assert found["nodeagent_ras_uncorrectable_errors", "0000:c1:00.0"] == 3
