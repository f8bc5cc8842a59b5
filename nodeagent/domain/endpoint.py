"""Where the read-only listener is, and what it may be called. Numbers only: no name is looked up."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

_ENDPOINT = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+)):([0-9]{1,5})", re.ASCII)
_NAME = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?", re.ASCII)
_HTTP = 80  # the port that browsers leave out of the Host header


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One TCP address and port."""

    address: IPv4Address | IPv6Address
    port: int

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """``127.0.0.1:9440`` or ``[::1]:9440``.

        Raises:
            ValueError: it is neither; says what it must be.
        """
        found = _ENDPOINT.fullmatch(text)
        port = int(found[3]) if found else 0
        try:
            address = ip_address((found[1] or found[2]) if found else "")
        except ValueError:
            port = 0
        if not 0 < port < 65536:
            raise ValueError("must be a numeric address and a port, as 127.0.0.1:9440 or [::1]:9440")
        return cls(address, port)

    @property
    def loopback(self) -> bool:
        return self.address.is_loopback

    def hosts(self, further: Iterable[str] = ()) -> frozenset[str]:
        """Every Host header that means this listener; *further*: names, each with a port or for this one."""
        numeric = f"[{self.address}]" if self.address.version == 6 else str(self.address)
        own = [] if self.address.is_unspecified else [numeric]
        names = [*own, *(["localhost"] if self.loopback else [])]
        found = {f"{name}:{self.port}" for name in names}
        found |= set(names) if self.port == _HTTP else set()
        for name in further:
            found |= {name.lower()} if _has_port(name) else {name.lower(), f"{name.lower()}:{self.port}"}
        return frozenset(found)


def check_host(text: str) -> str:
    """*text*, if it can be a Host header.

    Raises:
        ValueError: it cannot.
    """
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is no NAME or NAME:PORT")
    return text


def _has_port(name: str) -> bool:
    return ":" in name.rpartition("]")[2]
