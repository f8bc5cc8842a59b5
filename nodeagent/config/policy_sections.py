"""The sections that say who may have how much: tables that a site writes as many of as it needs."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StrictInt, StrictStr, model_validator

from nodeagent.config.names import gid_of, uid_of
from nodeagent.config.section import Section
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


# Sections that are written as often as a site needs them, and what each of them says.
TABLES: dict[str, type[Section]] = {"quota": Quota}
