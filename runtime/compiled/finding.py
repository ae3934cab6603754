"""What `optcc doctor` says of the path of chunks."""

from __future__ import annotations

import os
from collections.abc import Mapping

from optcc.machine.findings import PartFinding
from optcc.runtime.compiled.choice import NO_NUMBA, path_asked, path_of

_PART = "chunks by compiled code"
_GIVES = "a fifth of the processor time of a chunk beside its bytes, over the local transport"


def examine_path(environ: Mapping[str, str] = os.environ) -> PartFinding:
    """Which one runs of the local transport on this machine take; compiles nothing."""
    asked = path_asked(environ)
    path = path_of("python" if asked == "python" else "auto", "local", "cpu")  # what lacks is told, and no error
    if path.name == "python":
        get = {"": "OPTCC_PATH=auto", NO_NUMBA: "pip install numba"}.get(path.why, "")
        return PartFinding(_PART, False, path.why or "OPTCC_PATH=python", _GIVES, get)
    from optcc.machine.kernels import VARIABLE, cache_places
    from optcc.runtime.compiled.compiling import is_compiled

    if not cache_places():
        return PartFinding(_PART, True, "to be compiled by each process: no folder keeps it", _GIVES, VARIABLE)
    state = "compiled" if is_compiled() else "to be compiled at the first use, 15 to 30 s"
    return PartFinding(_PART, True, state, _GIVES)
