"""A real Prometheus on recorded metrics: backfilled from text, started on a free port of this machine, and asked.

It needs the programs prometheus and promtool (tools/programs.sh .venv prometheus, or Debian's package prometheus).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

START_S = 120.0
STEP_S = 60
"""Between samples; Prometheus takes a series to have ended when none comes for five minutes."""


def program(name: str) -> str | None:
    """Where prometheus or promtool is: on the path, or beside this Python, where tools/programs.sh puts them."""
    return shutil.which(name) or shutil.which(name, path=os.path.dirname(sys.executable))


@dataclass(frozen=True)
class Series:
    """One of a query's answer. `points` : (seconds since the epoch, value)."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Prometheus:
    """One that runs; `url` ends without a slash."""

    url: str

    def get(self, path: str, **parameters: str | float) -> Any:
        """The `data` of an answer. Raises AssertionError for an error."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=60) as reply:
            answer = json.load(reply)
        assert answer["status"] == "success", answer
        return answer["data"]

    def at(self, expr: str, at_s: float) -> list[Series]:
        """The value of `expr` at a time."""
        found = self.get("query", query=expr, time=at_s)["result"]
        return [Series(one["metric"], (_point(one["value"]),)) for one in found]

    def over(self, expr: str, start_s: float, end_s: float, step_s: float) -> list[Series]:
        """The values of `expr` over a time."""
        found = self.get("query_range", query=expr, start=start_s, end=end_s, step=step_s)["result"]
        return [Series(one["metric"], tuple(map(_point, one["values"]))) for one in found]


def _point(pair: tuple[float, str]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])


def samples(recording: str) -> list[tuple[str, Mapping[str, str], float]]:
    """(name, labels, value) of a recording in Prometheus' text format."""
    return [(s.name, s.labels, s.value) for family in text_string_to_metric_families(recording) for s in family.samples]


def history(phases: Iterable[tuple[str, float]], start_s: float) -> str:
    """OpenMetrics of recordings one after the other, each for so many seconds. What says when a diagnosis was made
    says the beginning of its phase."""
    lines: dict[str, list[str]] = {}
    for recording, seconds in phases:
        for name, labels, value in samples(recording):
            pairs = ",".join(f'{key}="{text}"' for key, text in labels.items())
            shown = start_s if name.endswith("_timestamp_seconds") else value
            for step in range(round(seconds / STEP_S)):
                lines.setdefault(name, []).append(f"{name}{{{pairs}}} {shown!r} {start_s + step * STEP_S:.0f}")
        start_s += seconds
    heads = {name: [f"# TYPE {name} gauge", *found] for name, found in lines.items()}
    return "\n".join(line for found in heads.values() for line in found) + "\n# EOF\n"


@contextmanager
def running(folder: Path, port: int, text: str = "", config: str = "") -> Iterator[Prometheus]:
    """Prometheus on `port` of 127.0.0.1, with the metrics `text` in OpenMetrics, until the context ends."""
    data = folder / "data"
    data.mkdir()
    if text:
        (folder / "history.om").write_text(text)
        made = [
            str(program("promtool")),
            "tsdb",
            "create-blocks-from",
            "openmetrics",
            str(folder / "history.om"),
            str(data),
        ]
        subprocess.run(made, check=True, capture_output=True, timeout=300)
    (folder / "prometheus.yml").write_text(config or "global: {}\n")
    command = [
        str(program("prometheus")), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={data}",
        "--storage.tsdb.retention.time=100y", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            _wait(f"http://127.0.0.1:{port}/-/ready", process, folder / "log")
            yield Prometheus(f"http://127.0.0.1:{port}")
        finally:
            process.kill()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=10).close()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            assert process.poll() is None, f"it ended: {log.read_text()[-2000:]}"
            assert time.monotonic() < end, f"not ready: {log.read_text()[-2000:]}"
            time.sleep(0.1)
        else:
            return
