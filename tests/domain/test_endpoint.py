"""Where the read-only listener may be, and what it is called."""

from __future__ import annotations

import pytest

from nodeagent.domain.endpoint import Endpoint, check_host


@pytest.mark.parametrize(
    ("text", "loopback", "hosts"),
    [
        ("127.0.0.1:9440", True, {"127.0.0.1:9440", "localhost:9440"}),
        ("[::1]:9440", True, {"[::1]:9440", "localhost:9440"}),
        ("127.0.0.1:80", True, {"127.0.0.1", "127.0.0.1:80", "localhost", "localhost:80"}),
        ("192.0.2.7:9440", False, {"192.0.2.7:9440"}),
        ("0.0.0.0:9440", False, set()),
    ],
)
def test_an_address_and_its_names(text: str, loopback: bool, hosts: set[str]) -> None:
    """An endpoint goes by its number, and by localhost where only the node itself reaches it."""
    endpoint = Endpoint.parse(text)
    assert (endpoint.loopback, endpoint.hosts()) == (loopback, hosts)


def test_further_names_go_with_the_port_and_as_they_are() -> None:
    """A proxy passes a name on without our port; a name with a port of its own is taken as it is."""
    found = Endpoint.parse("0.0.0.0:9440").hosts(["GPU01.example", "proxy:8443", "[2001:db8::1]"])
    assert found == {
        "gpu01.example",
        "gpu01.example:9440",
        "proxy:8443",
        "[2001:db8::1]",
        "[2001:db8::1]:9440",
    }


@pytest.mark.parametrize(
    "text",
    ["", "9440", ":9440", "localhost:9440", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536", "::1:9440",
     "[::1]", "127.0.0.1:9440 ", "127.1:9440", "[127.0.0.1]:x"],
)  # fmt: skip
def test_what_is_no_address_and_port_is_refused(text: str) -> None:
    """Names, missing ports and unbracketed IPv6 are refused with an example of what is right."""
    with pytest.raises(ValueError, match=r"as 127\.0\.0\.1:9440"):
        Endpoint.parse(text)


@pytest.mark.parametrize("text", ["", "http://x", "a b", "x/y", "*", "x:port"])
def test_what_is_no_host_is_refused(text: str) -> None:
    """A URL, a pattern or a list is no Host header, and would silently never match."""
    with pytest.raises(ValueError, match="no NAME"):
        check_host(text)
