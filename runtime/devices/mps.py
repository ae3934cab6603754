"""MPS, NVIDIA's service through which processes work on one GPU at the same time.

Without it they take turns: a copy that takes 5 us alone is seen complete after a quarter of a millisecond where two
processes have work. Source: NVIDIA's MPS guide (nvidia-cuda-mps-control(1)).
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from optcc.errors import InputError

COMMAND = "nvidia-cuda-mps-control"
DIRECTORY, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
START_S, END_S = 20.0, 20.0
"""For the service to open its socket; to end when it is told to."""
_SERVE = f"{COMMAND} -f & read line; echo quit | {COMMAND}; wait"
"""It ends when its standard input does. So it does with the process that has started it, however that ends."""


class Sharing(NamedTuple):
    """mps : whether ranks share their GPUs by a service that is started for them; why : for people."""

    mps: bool
    why: str


def sharing_of(ranks: int, gpus: int, environ: Mapping[str, str]) -> Sharing:
    """How `ranks` processes of this machine share `gpus` GPUs. An MPS directory that is set already is the user's."""
    if ranks <= gpus:
        return Sharing(False, "each rank has a GPU of its own")
    if DIRECTORY in environ:
        return Sharing(False, f"ranks share GPUs as {DIRECTORY} says")
    if shutil.which(COMMAND, path=environ.get("PATH")) is None:
        return Sharing(False, f"ranks take turns on a GPU, for there is no {COMMAND} here")
    return Sharing(True, "ranks share GPUs by MPS")


@contextmanager
def mps_service(environ: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """A service of one's own, in the block: the environment of processes that are to use it.

    Raises InputError when it does not start.
    """
    with tempfile.TemporaryDirectory(prefix="optcc-mps-") as folder:
        inside = {**environ, DIRECTORY: folder, LOGS: folder}
        # It serves all GPUs; processes choose by their own variable, by the numbers that GPUs have without it.
        of_service = {name: value for name, value in inside.items() if name != "CUDA_VISIBLE_DEVICES"}
        service = subprocess.Popen(
            ["sh", "-c", _SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=of_service,
            start_new_session=True,  # Ctrl-C is for the parent alone
        )
        try:
            _await(Path(folder))
            yield inside
        finally:
            assert service.stdin
            with suppress(BrokenPipeError):
                service.stdin.close()
            try:
                service.wait(END_S)
            except subprocess.TimeoutExpired:
                service.kill()
                service.wait(END_S)


def _await(folder: Path) -> None:
    until = time.monotonic() + START_S
    while not (folder / "control").exists():
        if time.monotonic() > until:
            log = folder / "control.log"
            said = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
            why = said[-1] if said else "it says nothing"
            raise InputError(
                "MPS does not start",
                where="--device cuda",
                expected=f"a socket of {COMMAND} within {START_S:g} s",
                got=why,
                hint=f"Set {DIRECTORY} to an empty directory to go without: then ranks take turns on a GPU.",
            )
        time.sleep(0.01)
