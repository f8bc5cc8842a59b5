"""The sections that say who may have how much: tables that a site writes as many of as it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StrictInt, StrictStr, model_validator

from nodeagent.config.names import gid_of, uid_of
from nodeagent.config.section import Section
from nodeagent.domain.guarantee import Compute, Ipc, Memory, Requirement, Visibility
from nodeagent.domain.reserved import party_of
from nodeagent.domain.sizes import size_of
from nodeagent.domain.slurm import account_of

EACH = "*"  # as a user: each by itself


def _user(name: str | int) -> str | int:
    if uid_of(str(name)) is None:
        raise ValueError(f"there is no user {name} on this node")
    return name


def _user_or_each(name: str | int) -> str | int:
    return name if name == EACH else _user(name)


def _group(name: str | int) -> str | int:
    if gid_of(str(name)) is None:
        raise ValueError(f"there is no group {name} on this node")
    return name


def _account(name: str) -> str:
    if account_of(name) is None:
        raise ValueError(f"{name!r} is no name of a Slurm account")
    return name


def _party(text: str) -> str:
    word, name = party_of(text)
    if {"user": uid_of, "group": gid_of}.get(word, len)(name) is None:
        raise ValueError(f"there is no {word} {name} on this node")
    return text


def _size(size: str | int) -> str | int:
    size_of(str(size))
    return size


_Name = StrictStr | StrictInt
User = Annotated[_Name, AfterValidator(_user)]
Group = Annotated[_Name, AfterValidator(_group)]
Party = Annotated[StrictStr, AfterValidator(_party)]
Size = Annotated[_Name, AfterValidator(_size)]
Kind = Literal["slurm", "docker", "process", "client"]
Most = Annotated[int, Field(ge=0, lt=1 << 53)]


class Quota(Section):
    """What those who are counted together may hold at once."""

    user: Annotated[_Name, AfterValidator(_user_or_each)] | None = Field(
        default=None, description='user (name or number) whose leases count; "*": each user\'s by themselves'
    )
    not_user: list[User] = Field(default=[], description="users whose leases do not count")
    group: Group | None = Field(
        default=None, description="group (name or number) whose members' leases count"
    )
    account: Annotated[str, AfterValidator(_account)] | None = Field(
        default=None, description="Slurm account whose jobs' leases count"
    )
    kind: Kind | None = Field(
        default=None, description="kind of holder whose leases count: slurm, docker, process or client"
    )
    leases: Most | None = Field(default=None, description="most leases that hold something")
    vram: Size | None = Field(default=None, description='most VRAM: bytes, or such as "48GiB"')
    cus: Most | None = Field(default=None, description="most CUs, those of a device's shared set aside")
    queue_slots: Most | None = Field(default=None, description="most queue slots")

    @model_validator(mode="after")
    def _of_something(self) -> Self:
        if (self.user, self.group, self.account, self.kind) == (None,) * 4:
            raise ValueError("says of nobody: give it a user, group, account or kind")
        if (self.leases, self.vram, self.cus, self.queue_slots) == (None,) * 4:
            raise ValueError("limits nothing: give it leases, vram, cus or queue_slots")
        if self.account is not None and self.kind not in (None, "slurm"):
            raise ValueError(f"account: only jobs have one, and no lease of kind {self.kind}")
        return self

    @property
    def name(self) -> str:
        """Whom it counts, for people."""
        whom = {"user": self.user, "group": self.group, "account": self.account, "kind": self.kind}
        said = (f"{word} {value}" for word, value in whom.items() if value is not None)
        return ", ".join(said).replace(f"user {EACH}", "each user")


def _share(text: str) -> float:
    """``25%`` as 25.0. Raises ValueError."""
    share = float(text.removesuffix("%"))
    if not 0 < share <= 100:
        raise ValueError(f"{text!r} is no share: write 25%, above 0 and at most 100")
    return share


def vram_of(told: str | int | None) -> dict[str, Any]:
    """A class's `vram` as the field of a slice. Raises ValueError."""
    if told is None:
        return {}
    text = str(told)
    return {"vram_percent": _share(text)} if text.endswith("%") else {"vram_bytes": size_of(text)}


def cu_of(told: str | int | None) -> dict[str, Any]:
    """A class's `cu` as the field of a slice. Raises ValueError."""
    if told is None or told == "shared":
        return {"cu_shared": True} if told else {}
    if isinstance(told, str):
        return {"cu_percent": _share(told)}
    if told < 1:
        raise ValueError(f"{told} is no number of CUs")
    return {"cus": told}


def requirement_of(told: Mapping[str, str]) -> Requirement:
    """A class's `require`. Raises ValueError."""
    kinds: dict[str, type[StrEnum]] = {
        "memory": Memory,
        "compute": Compute,
        "visibility": Visibility,
        "ipc": Ipc,
    }
    if unknown := told.keys() - kinds.keys():
        raise ValueError(f"{min(unknown)} is nothing that can be demanded: {', '.join(kinds)} are")
    levels: dict[str, Any] = {kind: kinds[kind](level) for kind, level in told.items()}
    return Requirement(**levels)


def _checked(reads: Callable[[Any], object]) -> AfterValidator:
    """Keeps what *reads* can read."""

    def check(value: Any) -> Any:
        reads(value)
        return value

    return AfterValidator(check)


_Seconds = Annotated[int, Field(ge=1, le=86_400)]
_Slots = Annotated[int, Field(ge=1, le=4096)]


class Class(Section):
    """What a request that names the class gets where it does not say, and at most."""

    users: list[User] = Field(default=[], description="users who may name it; with no groups either: all")
    groups: list[Group] = Field(default=[], description="groups whose members may name it")
    kinds: list[Kind] = Field(default=[], description="kinds of holders that it is for; empty: all")
    default: bool = Field(default=False, description="who may name it, and names no class, gets it")
    vram: Annotated[_Name | None, _checked(vram_of)] = Field(
        default=None, description='memory of a slice that does not say: bytes, "8GiB" or "25%"'
    )
    cu: Annotated[_Name | None, _checked(cu_of)] = Field(
        default=None, description='CUs of a slice that does not say: a number, "25%" or "shared"'
    )
    queue_slots: _Slots | None = Field(default=None, description="queue slots of a slice that does not say")
    shape: Literal["even", "exact"] = Field(default="even", description="shape where none is asked for")
    placement: Literal["binpack", "spread", "topology", "exclusive"] = Field(
        default="binpack", description="placement where none is asked for"
    )
    ttl_seconds: _Seconds | None = Field(default=None, description="life of a lease that does not say")
    max_vram: Size | None = Field(default=None, description="most VRAM of a lease")
    max_cus: Most | None = Field(default=None, description="most CUs of a lease")
    max_queue_slots: Most | None = Field(default=None, description="most queue slots of a lease")
    max_ttl_seconds: _Seconds | None = Field(
        default=None, description="longest life of a lease, renewals included"
    )
    priority: Literal["high", "normal", "low"] | None = Field(
        default=None, description="the highest place in the line that may be asked for"
    )
    require: Annotated[dict[str, str], _checked(requirement_of)] = Field(
        default={}, description="what every lease is held by at least, as in --require"
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.cu == "shared" and self.vram is None:
            raise ValueError('cu: "shared" needs vram: of the shared CUs nothing else bounds a slice')
        if self.ttl_seconds and self.max_ttl_seconds and self.ttl_seconds > self.max_ttl_seconds:
            raise ValueError("ttl_seconds: is longer than max_ttl_seconds")
        return self


# Sections that are written as often as a site needs them, and what each of them says.
TABLES: dict[str, type[Section]] = {"quota": Quota, "classes": Class}
