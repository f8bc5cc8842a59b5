"""The served description of the API is true, and complete."""

from __future__ import annotations

import re

import jsonschema_rs
import schemathesis


def test_every_route_is_described_and_every_description_routed(user, app):
    """Flask's rules and the document's paths are the same set of methods on paths."""
    document = user.get("/openapi.json").json
    routed = {
        (re.sub(r"<(\w+)>", r"{\1}", rule.rule), method)
        for rule in app.url_map.iter_rules()
        for method in rule.methods - {"HEAD"}
    }
    described = {(path, method.upper()) for path, item in document["paths"].items() for method in item}
    assert routed == described


def test_the_document_is_openapi_3_1(app, user):
    """It validates against the specification's own schema, and every reference in it resolves."""
    document = user.get("/openapi.json").json
    assert document["openapi"] == "3.1.0"
    schemathesis.openapi.from_dict(document).validate()
    schemas = document["components"]["schemas"]
    for name in set(re.findall(r"#/components/schemas/(\w+)", str(document))):
        assert name in schemas
    for schema in schemas.values():
        jsonschema_rs.meta.validate(schema)


def test_defaults_obey_their_own_schemas(user):
    """What a field is when it is left out could have been sent."""
    document = user.get("/openapi.json").json
    for name, schema in document["components"]["schemas"].items():
        for field, described in schema.get("properties", {}).items():
            if "default" in described:
                whole = {**described, "components": document["components"]}
                assert jsonschema_rs.is_valid(whole, described["default"]), f"{name}.{field}"


def test_operation_ids_are_unique(user):
    """Generated clients name their methods by them."""
    document = user.get("/openapi.json").json
    ids = [operation["operationId"] for item in document["paths"].values() for operation in item.values()]
    assert len(ids) == len(set(ids))


def test_every_operation_says_how_it_fails(user):
    """Each operation has a success and problem documents for its errors."""
    document = user.get("/openapi.json").json
    for item in document["paths"].values():
        for operation in item.values():
            assert any(status < "300" for status in operation["responses"])
            assert all(
                set(response["content"]) == {"application/problem+json"}
                for status, response in operation["responses"].items()
                if status >= "400"
            )
