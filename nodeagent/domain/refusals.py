"""A refusal: the normal "no", as a value. HAMi's reason names are kept where one fits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Code(StrEnum):
    """Why a request was refused. The order is the order in which a device is checked."""

    OWNED_BY_SLURM = "DeviceOwnedBySlurm"
    OWNED_LOCALLY = "DeviceOwnedLocally"  # Slurm asks for what the site keeps from it
    RESERVED_FOR_OTHERS = "DeviceReservedForOthers"  # by the site
    CARD_NOT_HEALTH = "CardNotHealth"  # unhealthy, gone, excluded
    CARD_CORDONED = "CardCordoned"  # draining
    CARD_TYPE_MISMATCH = "CardTypeMismatch"
    CARD_UUID_MISMATCH = "CardUuidMismatch"  # by device, uuid or deny list
    EXCLUSIVE_CONFLICT = "ExclusiveDeviceAllocateConflict"
    TIME_SLICING_EXHAUSTED = "CardTimeSlicingExhausted"  # by the count of leases, or by queue slots
    INSUFFICIENT_MEMORY = "CardInsufficientMemory"
    INSUFFICIENT_CORE = "CardInsufficientCore"
    CARD_RESERVED = "CardReserved"  # fits, and would delay one that waits for the device
    NUMA_NOT_FIT = "NumaNotFit"
    LINK_NOT_FIT = "LinkNotFit"
    INSUFFICIENT_DEVICE = "NodeInsufficientDevice"  # fewer devices fit than the request asks for
    NO_DEVICE = "NodeHasNoDevice"  # the node has no AMD GPU at all
    GUARANTEE_NOT_MET = "GuaranteeNotMet"
    QUOTA_NOT_FIT = "ResourceQuotaNotFit"  # limits of the caller's own, or of those it is counted with
    CARD_IN_USE = "CardInUse"  # of a change of its partition mode, not of a request for slices


@dataclass(frozen=True, slots=True)
class DeviceRefusal:
    """Why one device does not fit."""

    device: str
    code: Code
    why: str
    blockers: tuple[int, ...] = ()  # lease ids that hold what was asked for
    earliest_ns: int | None = None  # boot time at which the first blocker ends, where it is known


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the whole request does not fit now, and what to do next."""

    code: Code
    why: str
    next_act: str
    devices: tuple[DeviceRefusal, ...] = ()
    leases: tuple[int, ...] = ()  # that are in the way on whatever device

    @property
    def blockers(self) -> tuple[int, ...]:
        """Every lease that is in the way, lowest id first."""
        return tuple(sorted({*self.leases, *(one for device in self.devices for one in device.blockers)}))

    @property
    def earliest_ns(self) -> int | None:
        """When the first blocker ends, in boot time, where any end is known."""
        return min((one.earliest_ns for one in self.devices if one.earliest_ns is not None), default=None)
