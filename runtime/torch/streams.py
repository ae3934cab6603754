"""Buckets in GPU memory go by plan on a stream of their own, one for each GPU."""

from __future__ import annotations

from typing import Any

import torch

from optcc.runtime.torch.walk import Walk


def by_stream(walk: Walk, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """On a stream beside the backward's, which goes on; whoever waits for the future makes its stream wait."""
    stream = stream_of(buffer.device)
    stream.wait_stream(torch.cuda.current_stream(buffer.device))
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[buffer.device])
    with torch.cuda.stream(stream):
        buffer.record_stream(stream)
        walk.run(buffer)
        future.set_result(buffer)
    return future


_streams: dict[torch.device, Any] = {}


def stream_of(device: torch.device) -> Any:
    """The stream of GPU `device` on which plans run."""
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]


def done_with(done: torch.futures.Future[Any], result: torch.Tensor) -> torch.Tensor:
    """`result`, or the error of `done`."""
    done.value()
    return result
