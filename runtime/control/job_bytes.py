"""A job as bytes: its columns as numpy writes them, its tables as JSON. Nothing in it can be executed."""

from __future__ import annotations

import io
import json
from dataclasses import fields
from fractions import Fraction
from typing import Any
from zipfile import BadZipFile

import numpy as np

from optcc.runtime.codec import Json, MessageError, plain
from optcc.runtime.control.job import Job
from optcc.schedule import Lane, Link, Port, Route, Schedule

TABLES = "tables"
"""The member of the archive that holds the JSON, as bytes."""

COLUMNS = tuple(field.name for field in fields(Schedule) if "NDArray" in str(field.type))


def job_to_bytes(job: Job) -> bytes:
    """The job as an uncompressed npz: columns as ``name/column``, and a table of everything else."""
    names = list(job.schedules)
    arrays = {
        f"{at}/{column}": getattr(schedule, column)
        for at, schedule in enumerate(job.schedules.values())
        for column in COLUMNS
    }
    tables = {
        "dtype": job.dtype,
        "op": job.op,
        "paced": job.paced,
        "transport": job.transport,
        "slot_bytes": job.slot_bytes,
        "device": job.device,
        "path": job.path,
        "schedules": [{"name": name, **_tables(job.schedules[name])} for name in names],
    }
    arrays[TABLES] = np.frombuffer(json.dumps(tables).encode(), np.uint8)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def job_from_bytes(data: bytes) -> Job:
    """The inverse of `job_to_bytes`. MessageError for what is not such an archive."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            tables = json.loads(archive[TABLES].tobytes())
            schedules = {
                table["name"]: _schedule(table, {column: archive[f"{at}/{column}"] for column in COLUMNS})
                for at, table in enumerate(tables["schedules"])
            }
        given = {name: tables[name] for name in ("dtype", "op", "paced", "transport", "slot_bytes", "device", "path")}
        return Job(schedules, **given)
    except (BadZipFile, EOFError, KeyError, TypeError, ValueError, OSError) as error:
        raise MessageError(f"not a job: {type(error).__name__}: {error}") from error


def _tables(schedule: Schedule) -> Json:
    return {
        "ranks": schedule.ranks,
        "nbytes": schedule.nbytes,
        "ports": plain(schedule.ports),
        "links": plain(schedule.links),
        "routes": [
            [route.src, route.dst, [[lane.out, lane.into, str(lane.share), lane.links] for lane in route.lanes]]
            for route in schedule.routes
        ],
    }


def _schedule(table: Json, columns: dict[str, Any]) -> Schedule:
    routes = tuple(
        Route(src, dst, tuple(Lane(out, into, Fraction(share), tuple(links)) for out, into, share, links in lanes))
        for src, dst, lanes in table["routes"]
    )
    ports = tuple(Port(**row) for row in table["ports"])
    links = tuple(Link(**row) for row in table["links"])
    return Schedule(table["ranks"], table["nbytes"], ports, routes, **columns, links=links)
