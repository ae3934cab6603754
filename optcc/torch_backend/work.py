"""What a call gives to torch: something to wait for, which raises what the call has raised."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


class CallWork(dist.Work):  # type: ignore[misc]
    """Of one call.

    done : of the communicator's last operation for it; result : torch's, a tensor or a list
    """

    def __init__(self, done: Future[Any], result: Any) -> None:
        super().__init__()
        self._done, self._result = done, result

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Until it is done. Raises RankFailedError, or TimeoutError after a `timeout` other than 0, or the group's."""
        self._done.result(timeout.total_seconds() or None)
        return True

    def is_completed(self) -> bool:
        """Whether it has ended."""
        return self._done.done()

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self._done.done() and self._done.exception() is None

    def result(self) -> Any:
        """Of the call, once it is done."""
        self.wait()
        return self._result

    def get_future(self) -> Any:
        """For torch's C++ (DDP): there an error is a RuntimeError with the text."""
        ended: torch.futures.Future[Any] = torch.futures.Future()

        def outcome(_: Any) -> Any:
            error = self._done.exception()
            if error is not None:  # what is raised in here, and nothing else, is an error for C++, too
                raise error.with_traceback(None) from None
            return self._result

        told = ended.then(outcome)
        self._done.add_done_callback(lambda _: ended.set_result(None))
        return told


def finished(result: Any) -> CallWork:
    """Of a call that is over."""
    done: Future[Any] = Future()
    done.set_result(None)
    return CallWork(done, result)
