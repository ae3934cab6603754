"""The service's OpenAPI document, made of the routes and of the types that requests and replies are made of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from optcc import __version__
from optcc.serve.messages import ErrorReply

if TYPE_CHECKING:
    from optcc.serve.app import HttpRoute

ERRORS = {
    400: "The body is no JSON, or the request no HTTP.",
    404: "No such path or job.",
    405: "The path has no such method.",
    408: "The request did not come in time.",
    413: "The body is too large.",
    415: "The body is not called application/json.",
    421: "The Host header names another host.",
    422: "The request cannot be used: what, where, what was expected, what was got, and the way out.",
    429: "As many jobs as there may be.",
    503: "As many requests as there may be, or the service ends.",
    504: "No reply in time.",
}


def document(endpoints: Sequence[HttpRoute]) -> dict[str, Any]:
    """OpenAPI 3.1, whose schemas are JSON Schema 2020-12."""
    types = [kind for each in endpoints for kind in (each.request, each.reply) if kind is not None]
    _, schemas = msgspec.json.schema_components([*types, ErrorReply], ref_template="#/components/schemas/{name}")
    paths: dict[str, Any] = {}
    for each in endpoints:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {"title": "optcc serve", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _operation(endpoint: HttpRoute) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", endpoint.path)
    ] + [
        {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
        for name, text in endpoint.query
    ]  # fmt: skip
    reply: dict[str, Any] = {"description": "Done."}
    if endpoint.reply is not None:
        reply["content"] = _json(endpoint.reply.__name__)
    elif endpoint.status != 204:
        kind = "object" if endpoint.media == "application/json" else "string"
        reply["content"] = {endpoint.media: {"schema": {"type": kind}}}
    responses = {str(endpoint.status): reply}
    responses |= {str(status): {"description": text, "content": _json("ErrorReply")} for status, text in ERRORS.items()}
    operation: dict[str, Any] = {"summary": endpoint.summary, "parameters": parameters, "responses": responses}
    if endpoint.request is not None:
        operation["requestBody"] = {"required": True, "content": _json(endpoint.request.__name__)}
    return operation


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
