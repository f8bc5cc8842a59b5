"""Routes of devices: look at them, and an administrator's drain, undrain and clear."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from nodeagent.api.answers import DeviceAnswer, DevicesAnswer
from nodeagent.api.facade import Agent
from nodeagent.api.fields import Body
from nodeagent.api.models import DrainBody, EmptyBody
from nodeagent.api.present import Presenter
from nodeagent.api.query import pattern, whole
from nodeagent.api.routes import Call, Promise, Reply, Route
from nodeagent.domain.device import Device
from nodeagent.domain.errors import UnknownThing
from nodeagent.service.survey import free_of

_ONE = "/v1/devices/{pci}/{partition}"
_KEY = (
    pattern("pci", r"^[A-Za-z0-9._:-]{1,64}$", "The first part of the device's key, mostly a PCI address."),
    whole("partition", 0, 255, "The second part of the device's key."),
)
_NAMED = pattern(
    "device", r"^[A-Za-z0-9._:@/+,-]{0,1024}$", "Only these: names with commas between, in any spelling."
)
_DEVICE = Promise("The device.", DeviceAnswer)


class DeviceRoutes:
    """Turns calls about devices into use cases."""

    def __init__(self, agent: Agent, presenter: Presenter) -> None:
        self._agent = agent
        self._presenter = presenter

    def list_all(self, call: Call) -> Reply:
        found = self._agent.inventory().devices
        if names := call.query["device"]:
            wanted = {one.key for name in names.split(",") if name for one in self._agent.named(name)}
            found = tuple(one for one in found if one.key in wanted)
        return Reply(DevicesAnswer(devices=self._shown(*found), next=None))

    def show(self, call: Call) -> Reply:
        return self._one(self._device(call))

    def drain(self, call: Call) -> Reply:
        body = cast(DrainBody, call.body)
        return self._one(
            self._agent.drain(
                call.caller, self._device(call).key, reason=body.reason, until_seconds=body.until_seconds
            )
        )

    def undrain(self, call: Call) -> Reply:
        return self._one(self._agent.undrain(call.caller, self._device(call).key))

    def clear(self, call: Call) -> Reply:
        return self._one(self._agent.clear(call.caller, self._device(call).key))

    def routes(self) -> tuple[Route, ...]:
        return (
            Route(
                "GET",
                "/v1/devices",
                "listDevices",
                "Every device, with what is free on it.",
                self.list_all,
                {200: Promise("All devices.", DevicesAnswer)},
                problems=(403, 404, 503),
                query=(_NAMED,),
                web=True,
            ),
            Route(
                "GET",
                _ONE,
                "showDevice",
                "One device.",
                self.show,
                {200: _DEVICE},
                problems=(403, 404, 503),
                path_parameters=_KEY,
                web=True,
            ),
            self._act("drain", self.drain, "Grant nothing more on it.", DrainBody),
            self._act("undrain", self.undrain, "Grant on it again."),
            self._act(
                "clear",
                self.clear,
                "Take its card's uncorrectable errors as known; try the proof of quarantined slices again.",
            ),
        )

    @staticmethod
    def _act(verb: str, handle: Callable[[Call], Reply], summary: str, body: type[Body] = EmptyBody) -> Route:
        return Route(
            "POST",
            f"{_ONE}/{verb}",
            f"{verb}Device",
            summary,
            handle,
            {200: _DEVICE},
            problems=(404, 503),
            path_parameters=_KEY,
            body=body,
            administrators=True,
        )

    def _device(self, call: Call) -> Device:
        key = f"{call.path['pci']}/{call.path['partition']}"
        device = self._agent.inventory().device(key)
        if device is None:
            raise UnknownThing(f"there is no device {key}")
        return device

    def _one(self, device: Device) -> Reply:
        return Reply(self._shown(device)[0])

    def _shown(self, *devices: Device) -> list[DeviceAnswer]:
        inventory, held = self._agent.inventory(), self._agent.held()
        return [self._presenter.device(device, free_of(device, inventory, held)) for device in devices]
