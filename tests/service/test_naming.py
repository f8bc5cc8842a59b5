"""Names of devices that only the ledger can tell, and requests that keep what theirs meant."""

from __future__ import annotations

import pytest
from service_builders import House, order_of, user

from nodeagent.domain.errors import InvalidField, UnknownThing
from nodeagent.domain.request import Request, SliceRequest
from nodeagent.service.naming import Names
from nodeagent.service.orders import Granted


def test_a_place_in_a_lease_names_its_device(house: House) -> None:
    """lease:ID:N is the device of that slice, to whoever asks."""
    lease = house.grant(cus=8)
    key = lease.slices[0].placed.device
    names = Names(house.ledger)
    assert [one.key for one in names.devices(f"lease:{lease.id}:0", house.survey.inventory())] == [key]
    for name, why in ((f"lease:{lease.id}:1", "it has 1 slices"), ("lease:999999:0", "no such lease")):
        with pytest.raises(UnknownThing, match=why):
            names.devices(name, house.survey.inventory())


def test_leases_are_found_by_any_name_of_their_device(house: House) -> None:
    """Also by the key of a device that the node no longer has; another unknown name is an error."""
    lease = house.grant(cus=8)
    assert [one.id for one in house.agent.leases(user(), device="rocr:0")] == [lease.id]
    assert house.agent.leases(user(), device="0000:ff:00.0/0") == ()
    with pytest.raises(UnknownThing, match="names no device"):
        house.agent.leases(user(), device="renderD250")


def test_a_request_keeps_the_devices_that_its_numbers_meant(house: House) -> None:
    """What is booked are keys: the numbers may be another device's when the request is tried again."""
    key = house.survey.inventory().devices[0].key
    asked = Request((SliceRequest(cus=8, device=("rocr:0",), not_device=("lease:999999:0",)),))
    with pytest.raises(InvalidField, match="not_device"):
        house.agent.grant(user(), order_of(request=asked))
    asked = Request((SliceRequest(cus=8, device=("rocr:0",)),))
    outcome = house.agent.grant(user(), order_of(request=asked))
    assert isinstance(outcome, Granted)
    assert outcome.lease.request.slices[0].device == (key,)
