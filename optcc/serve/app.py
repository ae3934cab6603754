"""The routes, and the OpenAPI document, which is made of the same table and of the types of requests and replies."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from optcc import __version__
from optcc.errors import InputError, OptccError
from optcc.serve.planning import described
from optcc.serve.requests import (
    ErrorBody,
    ErrorReply,
    EventRequest,
    HealthReply,
    JobReply,
    JobRequest,
    MalformedError,
    MeasurementRequest,
    PlanReply,
    PlanRequest,
    ReplyError,
    ServeSettings,
    decode,
)
from optcc.serve.service import PlanningService

JSON = "application/json"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus' text format."""
Handler = Callable[[PlanningService, Request], Awaitable[bytes]]


@dataclass(frozen=True)
class HttpRoute:
    """One route: what it takes, what it gives, what for.

    query : name -> what it is, of parameters after a "?"
    quick : answered whatever else is in hand; others are turned away while `--concurrent` of them are
    media : the type of its reply
    """

    method: str
    path: str
    summary: str
    handler: Handler
    request: type[msgspec.Struct] | None = None
    reply: type[msgspec.Struct] | None = None
    status: int = 200
    query: tuple[tuple[str, str], ...] = ()
    quick: bool = False
    media: str = JSON


async def _plan(service: PlanningService, request: Request) -> bytes:
    return await service.plan(decode(await request.body(), PlanRequest))


async def _register(service: PlanningService, request: Request) -> bytes:
    return msgspec.json.encode(await service.register(decode(await request.body(), JobRequest)))


async def _job(service: PlanningService, request: Request) -> bytes:
    return msgspec.json.encode(await service.job(request.path_params["job"]))


async def _event(service: PlanningService, request: Request) -> bytes:
    return msgspec.json.encode(
        await service.event(request.path_params["job"], decode(await request.body(), EventRequest))
    )


async def _measurement(service: PlanningService, request: Request) -> bytes:
    body = decode(await request.body(), MeasurementRequest)
    await service.measured(request.path_params["job"], body)
    return b""


async def _job_plan(service: PlanningService, request: Request) -> bytes:
    given = dict(request.query_params)
    size = given.pop("size", "1GiB")
    if given:
        body = ErrorBody("InputError", "unknown parameter", "query", "size", ", ".join(given)[:100])
        raise ReplyError(422, body)
    return await service.job_plan(request.path_params["job"], size)


async def _forget(service: PlanningService, request: Request) -> bytes:
    await service.forget(request.path_params["job"])
    return b""


async def _health(service: PlanningService, request: Request) -> bytes:
    return msgspec.json.encode(service.health())


async def _openapi(service: PlanningService, request: Request) -> bytes:
    return msgspec.json.encode(document(endpoints(service.settings)))


async def _metrics(service: PlanningService, request: Request) -> bytes:
    return await service.metrics()


_SIZE = ("size", "Bytes per rank, such as 64MiB; 1GiB when it is not given.")
ENDPOINTS = (
    HttpRoute("POST", "/v1/plan", "A plan from scratch, or the kept reply.", _plan, PlanRequest, PlanReply),
    HttpRoute("POST", "/v1/jobs", "Keep plans ready for a cluster.", _register, JobRequest, JobReply, 201),
    HttpRoute("GET", "/v1/jobs/{job}", "A job's plans as they are now.", _job, None, JobReply),
    HttpRoute("POST", "/v1/jobs/{job}/events", "A NIC failed, slowed down or came back: the plans for what is left.",
             _event, EventRequest, JobReply, quick=True),
    HttpRoute("POST", "/v1/jobs/{job}/measurements", "How long the job's AllReduce took, for the metrics.",
             _measurement, MeasurementRequest, status=204),
    HttpRoute("GET", "/v1/jobs/{job}/plan", "The whole plan file of a job as it is now.", _job_plan, None, PlanReply,
             query=(_SIZE,)),
    HttpRoute("DELETE", "/v1/jobs/{job}", "Forget a job.", _forget, status=204),
    HttpRoute("GET", "/v1/health", "Whether the service answers, and what it holds.", _health, None, HealthReply,
             quick=True),
    HttpRoute("GET", "/v1/openapi.json", "This document.", _openapi, quick=True),
)  # fmt: skip
METRICS = HttpRoute("GET", "/metrics", "Metrics for Prometheus.", _metrics, quick=True, media=TEXT)
"""Where the service is asked for it by ``--metrics``."""


def endpoints(settings: ServeSettings) -> tuple[HttpRoute, ...]:
    """What the service answers."""
    return (*ENDPOINTS, METRICS) if settings.metrics else ENDPOINTS


def application(settings: ServeSettings, dropped: Callable[[], int]) -> Starlette:
    """The service, without the guard that it must not run without. `dropped`: lines of the log that nobody read."""
    service, known = PlanningService(settings, dropped), endpoints(settings)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            service.close()

    app = Starlette(
        routes=[Route(each.path, _route(service, each), methods=[each.method]) for each in known],
        exception_handlers={HTTPException: partial(_http_error, known)},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # what has no route is told so, with a body, as everything is
    return app


def _route(service: PlanningService, endpoint: HttpRoute) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        try:
            with nullcontext() if endpoint.quick else service.place():
                body = await endpoint.handler(service, request)
        except ReplyError as error:
            return _error(error.status, error.body)
        except MalformedError as error:
            return _error(400, described(error))
        except InputError as error:
            return _error(422, described(error))
        except OptccError as error:
            return _error(500, described(error))
        if endpoint.status == 204:
            return Response(status_code=204)
        return Response(body, status_code=endpoint.status, headers={"content-type": endpoint.media})

    return respond


async def _http_error(known: Sequence[HttpRoute], request: Request, error: Exception) -> Response:
    """Starlette's own: no such path, or not with this method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    expected = ", ".join(f"{each.method} {each.path}" for each in known)
    reply = _error(
        status, ErrorBody("RouteError", "no such request", request.url.path[:200], expected, request.method[:16])
    )
    reply.headers.update(getattr(error, "headers", None) or {})
    return reply


def _error(status: int, body: ErrorBody) -> Response:
    later = {"retry-after": "1"} if status in (429, 503) else None
    return Response(msgspec.json.encode(ErrorReply(body)), status, later, media_type="application/json")


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
