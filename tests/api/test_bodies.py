"""Request bodies of every wrong shape are refused by name, and leave nothing behind."""

from __future__ import annotations

import json

import pytest

DEEP = b'{"slices":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
FIELD = "slices[0].cus"


def slices(text: str) -> bytes:
    return b'{"slices":[{"cus":' + text.encode() + b"}]}"


def of_names(*counts: int) -> bytes:
    """A slice for each of *counts*, that leaves out so many devices."""
    return json.dumps(
        {
            "slices": [
                {"not_device": [f"{at}.{name}" for name in range(count)]} for at, count in enumerate(counts)
            ]
        }
    ).encode()


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        (b"", 400, "MalformedBody", None),
        (b"{", 400, "MalformedBody", None),
        (b"\xff\xfe{}", 400, "MalformedBody", None),
        (b"\xef\xbb\xbf{}", 400, "MalformedBody", None),
        (b'{"request_id":"a"} {}', 400, "MalformedBody", "request_id"),
        (b'{"request_id":"\\ud800"}', 400, "MalformedBody", "request_id"),
        (b'{"request_id":"\\udc00\\ud800"}', 400, "MalformedBody", "request_id"),
        (b'{"request_id":"\x01"}', 400, "MalformedBody", "request_id"),
        (b'{"request_id":"a","request_id":"b"}', 400, "MalformedBody", "request_id"),
        (b'{"request_id":"a","request\\u005fid":"b"}', 400, "MalformedBody", "request_id"),
        (b'{"slices":[{"cus":1,"cus":2}]}', 400, "MalformedBody", "cus"),
        (slices("NaN"), 400, "MalformedBody", "cus"),
        (slices("Infinity"), 400, "MalformedBody", "cus"),
        (slices("9" * 5000), 400, "MalformedBody", "cus"),
        (DEEP, 413, "TooLarge", None),
        (DEEP[:300] + b"", 400, "MalformedBody", "slices"),
        (b'{"request_id":"' + b"a" * 70_000 + b'"}', 413, "TooLarge", None),
        (b"[]", 422, "InvalidField", "body"),
        (b"null", 422, "InvalidField", "body"),
        (b"5", 422, "InvalidField", "body"),
        (slices("100000000000000000000"), 422, "InvalidField", FIELD),
        (slices("9007199254740993"), 422, "InvalidField", FIELD),
        (slices("9007199254740993.0"), 422, "InvalidField", FIELD),
        (slices("true"), 422, "InvalidField", FIELD),
        (slices('"5"'), 422, "InvalidField", FIELD),
        (slices("5.5"), 422, "InvalidField", FIELD),
        (slices("1e400"), 422, "InvalidField", FIELD),
        (slices("0"), 422, "InvalidField", FIELD),
        (slices("-1"), 422, "InvalidField", FIELD),
        (slices("null"), 422, "InvalidField", FIELD),
        (slices("[[[[1]]]]"), 422, "InvalidField", FIELD),
        (b'{"request_id":"\\u0000"}', 422, "InvalidField", "request_id"),
        (b'{"request_id":"a\\nb"}', 422, "InvalidField", "request_id"),
        (b'{"request_id":"a\\u001b[31m"}', 422, "InvalidField", "request_id"),
        (b'{"request_id":"a\\n"}', 422, "InvalidField", "request_id"),
        (b'{"request_id":"$(id)"}', 422, "InvalidField", "request_id"),
        (b'{"request_id":"a\'b"}', 422, "InvalidField", "request_id"),
        (b'{"request_id":"\\u202e"}', 422, "InvalidField", "request_id"),
        (b'{"request_id":"\xc3\xa9"}', 422, "InvalidField", "request_id"),
        (b'{"request_id":""}', 422, "InvalidField", "request_id"),
        (b'{"request_id":"' + b"a" * 65 + b'"}', 422, "InvalidField", "request_id"),
        (b'{"Request_id":"a"}', 422, "InvalidField", "Request_id"),
        (b'{"uid":0}', 422, "InvalidField", "uid"),
        (b'{"\\u001b[31m":0}', 422, "InvalidField", "\\x1b[31m"),
        (b'{"holder":{"kind":"client","id":"a","uid":0}}', 422, "InvalidField", "holder.uid"),
        (b'{"holder":{"kind":"root","id":"a"}}', 422, "InvalidField", "holder"),
        (b'{"holder":{"kind":"slurm","id":"../1"}}', 422, "InvalidField", "holder.id"),
        (b'{"holder":{"kind":"process","id":"1 2"}}', 422, "InvalidField", "holder.id"),
        (b'{"anchor":{"kind":"process","pid":1}}', 422, "InvalidField", "anchor.pid"),
        (b'{"anchor":{"kind":"ttl","pid":7}}', 422, "InvalidField", "anchor.pid"),
        (b'{"anchor":{"kind":"cgroup","cgroup":"/a/../b"}}', 422, "InvalidField", "anchor.cgroup"),
        (b'{"slices":[]}', 422, "InvalidField", "slices"),
        (b'{"slices":{}}', 422, "InvalidField", "slices"),
        (b'{"slices":[{"cus":8,"cu_percent":5}]}', 422, "InvalidField", "slices[0].cu_percent"),
        (b'{"slices":[{"cus":8,"cu_shared":true}]}', 422, "InvalidField", "slices[0].cu_shared"),
        (b'{"slices":[{"vram_bytes":8,"vram_percent":5}]}', 422, "InvalidField", "slices[0].vram_percent"),
        (b'{"slices":[{"cu_percent":true}]}', 422, "InvalidField", "slices[0].cu_percent"),
        (b'{"slices":[{"cu_percent":101}]}', 422, "InvalidField", "slices[0].cu_percent"),
        (b'{"slices":[{"cu_shared":1}]}', 422, "InvalidField", "slices[0].cu_shared"),
        (b'{"slices":[{"type":["a;b"]}]}', 422, "InvalidField", "slices[0].type[0]"),
        (of_names(43, 43, 43), 422, "InvalidField", "slices"),
        (b'{"slices":[{"device":["a*"]}]}', 422, "InvalidField", "slices[0].device[0]"),
        (b'{"placement":"random"}', 422, "InvalidField", "placement"),
        (b'{"numa_bind":"yes"}', 422, "InvalidField", "numa_bind"),
        (b'{"require":{"memory":"strong"}}', 422, "InvalidField", "require.memory"),
        (b'{"ttl_seconds":86401}', 422, "InvalidField", "ttl_seconds"),
        (b'{"wait_seconds":-1}', 422, "InvalidField", "wait_seconds"),
    ],
)
def test_wrong_bodies_name_the_field(user, agent, body, status, code, field):
    """Each refused shape gets its 4xx with the field's name, and no order reaches the agent."""
    answer = user.post("/v1/leases", data=body, content_type="application/json")
    assert (answer.status_code, answer.json["code"], answer.json.get("field")) == (status, code, field)
    assert answer.content_type == "application/problem+json"
    assert agent.orders == []


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"[]", "must be an object"),
        (b'{"require":"memory=hook"}', "must be an object"),
        (b'{"slices":{}}', "must be a list"),
        (b'{"slices":[]}', "must have at least 1 item(s)"),
        (b'{"slices":[{"device":[7]}]}', "must be a string"),
        (b'{"numa_bind":"yes"}', "must be true or false"),
        (b'{"holder":{"id":"x"}}', "kind has to be there"),
        (b'{"holder":{"kind":"robot"}}', "kind must be one of 'slurm', 'docker', 'client', 'process'"),
    ],
)
def test_wrong_types_are_told_in_words_of_json(user, body, why):
    """What is wrong is said without the parser's types, and without the caller's own text."""
    assert user.post("/v1/leases", data=body, content_type="application/json").json["detail"] == why


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "application/json; charset=utf-16"}, 415),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, 415),
        ({"Content-Type": "application/json; charset=UTF-8"}, 201),
    ],
)
def test_only_plain_utf8_json_is_read(user, headers, status):
    """Another media type, charset or encoding is a 415."""
    answer = user.post("/v1/leases", data=b"{}", headers=headers)
    assert answer.status_code == status
    assert answer.json.get("code") == ("UnsupportedMedia" if status == 415 else None)


def test_wrong_input_is_never_repeated(user):
    """An answer holds no part of a refused value: it could be a terminal's or a page's code."""
    answer = user.post("/v1/leases", json={"request_id": "<script>\x1b[2J"})
    assert answer.status_code == 422
    assert "script" not in answer.text and "\\u001b" not in answer.text


def test_whole_floats_are_integers(user, agent):
    """5.0 is an integer for JSON Schema, so it is one here, and digests like 5."""
    for text in ("5", "5.0", "50e-1"):
        assert user.post("/v1/leases", data=slices(text), content_type="application/json").status_code == 201
    assert {order.request.slices[0].cus for _, order in agent.orders} == {5}
    assert len({order.digest for _, order in agent.orders}) == 1


@pytest.mark.parametrize("verb", ["attach", "renew"])
def test_calls_without_fields_need_no_body(user, agent, verb):
    """An empty body is as good as an empty object where every field may be left out."""
    lease = agent.add(1000)
    assert user.post(f"/v1/leases/{lease.id}/{verb}").status_code == 200
    assert user.post(f"/v1/leases/{lease.id}/{verb}", json={}).status_code == 200
    assert user.post(f"/v1/leases/{lease.id}/{verb}", json={"pid": 1}).json["field"] == "pid"


def test_empty_filter_items_mean_nothing(user, agent):
    """Trailing commas of other tools leave empty items, which filter nothing."""
    body = {"slices": [{"type": ["AMD Instinct MI300X", ""], "device": [""], "not_type": ["gfx9*"]}]}
    assert user.post("/v1/leases", data=json.dumps(body), content_type="application/json").status_code == 201
    asked = agent.orders[0][1].request.slices[0]
    assert (asked.type, asked.device, asked.not_type) == (("AMD Instinct MI300X",), (), ("gfx9*",))


def test_names_are_held_against_devices_once(user, agent):
    """A name that stands in a list many times is one; 128 in all the lists together are not too many."""
    repeated = {"slices": [{"not_device": ["renderD250"] * 64}] * 3}
    assert user.post("/v1/leases", json=repeated).status_code == 201
    assert {one.not_device for _, order in agent.orders for one in order.request.slices} == {("renderD250",)}
    assert user.post("/v1/leases", data=of_names(64, 64), content_type="application/json").status_code == 201
