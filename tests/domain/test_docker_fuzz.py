"""Whatever is written: a body that passes, read as Go reads it, asks for nothing that is a GPU's."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from .docker_bodies import CREATE, judged, request

KEYS = [
    "HostConfig", "Privileged", "Devices", "PathOnHost", "Binds", "CapAdd", "DeviceRequests", "CgroupParent",
    "Runtime", "PidMode", "Mounts", "Type", "Source", "Target", "SecurityOpt", "Labels", "Image", "Memory",
]  # fmt: skip
VALUES = [
    "true", "false", "null", "1", '"bind"', '"/dev"', '"/dev/dri:/d"', '"/srv:/d"', '"v:/d"', '"ALL"',
    '"host"',
    '"/gpulease.slice"', '"runc"', '"local"', '"amd"', "[]", "{}", '"\\u002fdev:/d"',
]  # fmt: skip
BIND = '[{"Type":"bind","Source":"/sys"}]'
VOLUME = '[{"Type":"volume","Source":"v","Target":"/d","VolumeOptions":{"DriverConfig":{"Options":OPTIONS}}}]'
SUITED = {
    "Privileged": ["true", "false", "null"],
    "Devices": ["[]", "null", '[{"PathOnHost":"/dev/kfd"}]'],
    "DeviceCgroupRules": ["[]", '["a"]'],
    "Binds": ['["/srv:/d"]', '["v:/d","/srv/x:/y:ro"]', '["/dev:/d"]', '["//./dev:/d"]', '["/:/d:ro"]'],
    "Mounts": ["[]", VOLUME.replace("OPTIONS", "{}"), VOLUME.replace("OPTIONS", '{"o":"bind"}'), BIND],
    "CapAdd": ["[]", '["NET_ADMIN"]', '["ALL"]'],
    "CgroupParent": ['""', '"a.slice"', '"/gpulease.slice/x"'],
    "Runtime": ['""', '"runc"', '"amd"'],
    "PidMode": ['""', '"host"'],
    "Memory": ["1"],
}


def go_fold(key: str) -> str:
    """As encoding/json compares names: simple case folding, with the long s and the Kelvin sign."""
    return key.replace("\u017f", "s").replace("\u212a", "k").lower()


class GoObject(dict[str, Any]):
    """An object as Go fills a struct from it: names in any case, the last one counts, objects are merged."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__()
        for key, value in pairs:
            name = go_fold(key)
            if value is None and name in self:
                continue  # null leaves a bool, a text or a number as it is
            if isinstance(value, GoObject) and isinstance(self.get(name), GoObject):
                self[name].update(value)
            else:
                self[name] = value


def go_reads(body: bytes) -> GoObject:
    """The first document of *body*; an empty one where Go finds none either."""
    text = body.decode("utf-8", errors="replace")
    try:
        read, _ = json.JSONDecoder(object_pairs_hook=GoObject).raw_decode(text.lstrip(" \t\r\n"))
    except (ValueError, RecursionError):
        return GoObject([])
    return read if isinstance(read, GoObject) else GoObject([])


def forbidden(host: GoObject) -> bool:
    """Whether what dockerd would make of it reaches a GPU: a second, plain writing of the rules."""
    mounts = [mount for mount in listed(host, "mounts") if isinstance(mount, dict)]
    binds = [str(bind) for bind in listed(host, "binds")]
    sources = [bind.partition(":")[0] for bind in binds] + [str(mount.get("source")) for mount in mounts]
    options = [driver_options(mount) for mount in mounts]
    return any((
        host.get("privileged"),
        host.get("devices"),
        host.get("devicecgrouprules"),
        host.get("devicerequests"),
        "gpulease" in str(host.get("cgroupparent")),
        host.get("runtime") not in (None, "", "runc"),
        host.get("pidmode") == "host",
        "ALL" in listed(host, "capadd"),
        any(options),
        any(re.match(r"/+(\./+)*(dev|sys|proc|run|$)", source) for source in sources),
    ))  # fmt: skip


def listed(host: GoObject, key: str) -> list[Any]:
    value = host.get(key)
    return value if isinstance(value, list) else []


def driver_options(mount: dict[str, Any]) -> Any:
    for key in ("volumeoptions", "driverconfig", "options"):
        mount = mount.get(key) or {}
        if not isinstance(mount, dict):
            return None
    return mount


def spelled(key: str) -> st.SearchStrategy[str]:
    """A key as JSON, in the ways in which Go reads the same one."""
    ways = {key, key.lower(), key.upper(), key.replace("s", "\u017f"), key.replace("k", "\u212a")}
    escaped = f"\\u{ord(key[0]):04x}{key[1:]}"
    return st.sampled_from([f'"{way}"' for way in sorted(ways)] + [f'"{escaped}"'])


def written(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Objects, with keys twice as may be, and lists, as text."""
    exact = st.sampled_from([f'"{key}"' for key in KEYS])
    keys = st.one_of(exact, exact, exact, st.sampled_from(KEYS).flatmap(spelled))
    pairs = st.lists(st.tuples(keys, inner).map(":".join), max_size=3)
    objects = pairs.map(lambda pairs: "{" + ",".join(pairs) + "}")
    return st.one_of(objects, objects, st.lists(inner, max_size=2).map(lambda items: f"[{','.join(items)}]"))


DOCUMENTS = st.recursive(st.sampled_from(VALUES), written, max_leaves=8)
SETTING = st.sampled_from(sorted(SUITED)).flatmap(
    # The exact spelling is the likeliest, so that bodies that pass are found as well.
    lambda key: st.tuples(st.one_of(*[st.just(f'"{key}"')] * 5, spelled(key)), st.sampled_from(SUITED[key]))
)
HOST = st.lists(SETTING.map(":".join), max_size=4).map(
    lambda pairs: '{"Image":"t:1","HostConfig":{' + ",".join(pairs) + "}}"
)
TOP = st.lists(st.tuples(st.sampled_from(KEYS).flatmap(spelled), DOCUMENTS).map(":".join), max_size=3).map(
    lambda pairs: "{" + ",".join(pairs) + "}"
)
TAILS = st.sampled_from(["", "", "", " ", '{"HostConfig":{}}', "x", "\0"])


@given(st.one_of(HOST, TOP), TAILS)
@example('{"HostConfig":{"Privileged":true},"HostConfig":{}}', "")
@example('{"Ho\u017ftConfig":{"Privileged":true}}', "")
@example('{"HostConfig":{"Privileged":true,"Privileged":null}}', "")
@example('{"HostConfig":{"Mounts":[{"Type":"bind","Source":"/dev","Target":"/d"}]}}', "")
def test_what_passes_is_harmless_as_go_reads_it(text: str, tail: str) -> None:
    """dockerd's reading of a body that passes has no device, no way to one, and nothing beside HostConfig."""
    body = (text + tail).encode()
    if judged(request(body)) is None:
        read = go_reads(body)
        host = read.get("hostconfig")
        assert not forbidden(host if isinstance(host, GoObject) else GoObject([]))
        assert not forbidden(read)


@given(st.binary(max_size=200))
def test_bytes_are_judged_without_a_fault(body: bytes) -> None:
    """Whatever they are; what passes is an object that both read alike."""
    if judged(request(body)) is None:
        assert isinstance(json.loads(body), dict)


@given(st.text(alphabet="/v1.24containersce%?&=;.\\\u017f#", max_size=40))
@example("/containers/create")
def test_addresses_are_judged_without_a_fault(path: str) -> None:
    """Whatever they are; a create without a body is never let through."""
    why = judged(request(b"", f"/{path}"))
    assert why is not None or "create" not in path.partition("?")[0]
    assert judged(request(b"", CREATE)) is not None
