"""The OpenAPI 3.1 document, made from the same routes and models that serve the requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from nodeagent.api import answers
from nodeagent.api.problems import KINDS, MEDIA_TYPE, METHOD_NOT_ALLOWED
from nodeagent.api.query import Parameter
from nodeagent.api.routes import JSON, OCTETS, TEXT, Promise, Route

Document = dict[str, Any]
_HEADERS: Mapping[str, Document] = {
    "Location": {
        "description": "Where the lease is.",
        "required": True,
        "schema": {"type": "string", "pattern": "^/v1/leases/[0-9]+$"},
    },
    "Retry-After": {
        "description": "Seconds after which to ask again; there when the answer came sooner than asked for.",
        "required": False,
        "schema": {"type": "integer", "minimum": 1},
    },
}
_REFUSED = "The request does not fit now; ``code`` is the reason."


def document(routes: Iterable[Route], version: str) -> Document:
    """Describe *routes*."""
    served = tuple(routes)
    paths: dict[str, Document] = {}
    for route in served:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "nodeagent",
            "version": version,
            "summary": "Share the AMD GPUs of one node.",
            "description": "Served on a unix socket. The caller is its peer, whatever a header says.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": _schemas(served)},
    }


def _operation(route: Route) -> Document:
    operation: Document = {
        "operationId": route.name,
        "summary": route.summary,
        "responses": {str(status): _promise(route, promise) for status, promise in route.promises.items()},
    }
    operation["responses"] |= {str(status): _problem(status) for status in route.all_problems}
    parameters = [_parameter(p, "path") for p in route.path_parameters]
    parameters += [_parameter(p, "query") for p in route.query]
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {
            "required": route.body_required,
            "content": {JSON: {"schema": _reference(route.body)}},
        }
    if route.octets:
        operation["requestBody"] = {
            "required": True,
            "content": {OCTETS: {"schema": {"type": "string", "format": "binary"}}},
        }
    if route.administrators:
        operation["description"] = "For administrators only."
    return operation


def _parameter(parameter: Parameter, place: str) -> Document:
    return {
        "name": parameter.name,
        "in": place,
        "required": place == "path",
        "description": parameter.about,
        "schema": dict(parameter.schema),
    }


def _promise(route: Route, promise: Promise) -> Document:
    response: Document = {"description": promise.about}
    if promise.answer is not None:
        response["content"] = {
            JSON: {"schema": _reference(promise.answer)},
            TEXT: {"schema": {"type": "string"}},
        }
    elif route.media == (JSON,):
        response["content"] = {JSON: {"schema": {"type": "object"}}}
    elif len(route.media) == 1:
        response["content"] = {route.media[0]: {"schema": {"type": "string"}}}
    if promise.headers:
        response["headers"] = {name: _HEADERS[name] for name in promise.headers}
    return response


def _problem(status: int) -> Document:
    kinds = [kind for kind in (*KINDS.values(), METHOD_NOT_ALLOWED) if kind.status == status]
    titles = ". ".join(f"``{kind.code}``: {kind.title}" for kind in kinds)
    response: Document = {
        "description": _REFUSED if status == 409 else titles or "The agent failed; its log says why",
        "content": {MEDIA_TYPE: {"schema": _reference(answers.ProblemAnswer)}},
    }
    if any(kind.retry_after for kind in kinds):
        response["headers"] = {"Retry-After": _HEADERS["Retry-After"]}
    return response


def _schemas(routes: Iterable[Route]) -> Document:
    bodies = {route.body for route in routes if route.body is not None}
    replies = {p.answer for route in routes for p in route.promises.values() if p.answer is not None}
    wanted: list[tuple[type[BaseModel], Any]] = [(body, "validation") for body in bodies]
    wanted += [(reply, "serialization") for reply in replies | {answers.ProblemAnswer}]
    wanted.sort(key=lambda pair: pair[0].__name__)
    _, found = models_json_schema(wanted, ref_template="#/components/schemas/{model}")
    schemas: Document = found["$defs"]
    return dict(sorted(schemas.items()))


def _reference(model: type[BaseModel]) -> Document:
    return {"$ref": f"#/components/schemas/{model.__name__}"}
