"""`optcc serve`: the planner as a local service."""

from __future__ import annotations

from pathlib import Path

import click

from optcc.cli.options import json_option
from optcc.errors import InputError


@click.command()
@click.option("--unix", type=click.Path(path_type=Path), metavar="PATH", help="A Unix socket, mode 0600.")
@click.option("--address", metavar="IP", help="A numeric address to listen on (default 127.0.0.1).")
@click.option("--port", type=click.IntRange(0, 65535), help="Default 8642; 0: any free one, which is printed.")
@click.option("--allow-remote", is_flag=True, help="Allow an address that others can reach. There is no password.")
@click.option(
    "--workers", type=int, default=1, show_default=True, metavar="N", help="Processes for plans from scratch."
)
@click.option("--memory", default="2GiB", show_default=True, metavar="SIZE", help="Most memory of each such process.")
@click.option("--jobs", type=int, default=16, show_default=True, metavar="N", help="Most clusters kept ready for.")
@click.option("--cache", default="64MiB", show_default=True, metavar="SIZE", help="Most bytes of replies kept.")
@click.option("--body", default="1MiB", show_default=True, metavar="SIZE", help="Largest request.")
@click.option("--concurrent", type=int, default=64, show_default=True, metavar="N", help="Most plans at once.")
@click.option("--read-limit", default="10s", show_default=True, metavar="TIME", help="For a request to come in.")
@click.option("--request-limit", default="60s", show_default=True, metavar="TIME", help="From there to its reply.")
@click.option("--drain", default="10s", show_default=True, metavar="TIME", help="For requests in hand after SIGTERM.")
@click.option("--metrics", is_flag=True, help="Answer GET /metrics, for Prometheus (docs/monitoring.md).")
@json_option
def serve(
    unix: Path | None,
    address: str | None,
    port: int | None,
    allow_remote: bool,
    workers: int,
    memory: str,
    jobs: int,
    cache: str,
    body: str,
    concurrent: int,
    read_limit: str,
    request_limit: str,
    drain: str,
    metrics: bool,
    as_json: bool,
) -> None:
    """Answer plans over HTTP, on loopback or a Unix socket, until SIGTERM (docs/planning-at-failure.md).

    Prints where it listens once it does; a line of JSON per request goes to stderr.
    """
    import json

    from optcc.reports.metrics import need_prometheus
    from optcc.serve.requests import ServeSettings
    from optcc.values.units import parse_seconds, parse_size

    try:
        from optcc.serve.listen import LOCAL_NAMES, forget_unix_socket, identity, tcp_socket, unix_socket
        from optcc.serve.listen import serve as serve_on
    except ModuleNotFoundError as error:
        raise InputError(
            "a package is missing", where="optcc serve", expected="the extra serve", got=error.name,
            hint="pip install starlette uvicorn",
        ) from None  # fmt: skip
    if metrics:
        need_prometheus("--metrics")
    if unix is not None and (address is not None or port is not None or allow_remote):
        raise InputError("one or the other", where="--unix, --address, --port", expected="not both")
    settings = ServeSettings(
        body=parse_size(body, "--body"),
        read_s=float(parse_seconds(read_limit, "--read-limit")),
        request_s=float(parse_seconds(request_limit, "--request-limit")),
        concurrent=concurrent,
        workers=workers,
        memory=parse_size(memory, "--memory"),
        jobs=jobs,
        cache_bytes=parse_size(cache, "--cache"),
        drain_s=float(parse_seconds(drain, "--drain")),
        metrics=metrics,
    )

    def say(where: str) -> None:
        click.echo(json.dumps({"listening": where}) if as_json else f"listening on {where}")

    if unix is not None:
        listener = unix_socket(unix)
        ours = identity(unix)
        try:
            serve_on(listener, settings, ready=lambda: say(f"unix:{unix}"))
        finally:
            forget_unix_socket(unix, ours)
        return
    address = address or "127.0.0.1"
    listener = tcp_socket(address, 8642 if port is None else port, remote=allow_remote)
    bound = listener.getsockname()[1]
    shown = f"[{address}]" if ":" in address else address
    # Reached from elsewhere it goes by names that nobody here knows.
    names = None if allow_remote else LOCAL_NAMES
    serve_on(listener, settings, names=names, ready=lambda: say(f"http://{shown}:{bound}"))
