"""What `optcc doctor` says of the path of chunks."""

from __future__ import annotations

import os
from collections.abc import Mapping

from optcc.errors import InputError
from optcc.machine import native
from optcc.machine.findings import PartFinding
from optcc.runtime.compiled.choice import path_asked, path_of

_PART, _GIVES = "path of chunks", "what moves and adds bytes in host memory"


def examine_path(environ: Mapping[str, str] = os.environ) -> PartFinding:
    """Which one runs on this machine take for buffers in host memory; compiles nothing."""
    asked = path_asked(environ)
    try:
        path = path_of(asked, "local", "cpu")
        if path.name == "native":
            native.library()
    except InputError as error:  # what lacks is told, and no error
        return PartFinding(_PART, False, f"{asked}: {error.what}", _GIVES, error.hint or "")
    if path.name != "compiled":
        return PartFinding(_PART, True, str(path), _GIVES)
    from optcc.machine.kernels import VARIABLE, cache_places
    from optcc.runtime.compiled.compiling import is_compiled

    if not cache_places():
        return PartFinding(_PART, True, "compiled, by each process anew: no folder keeps it", _GIVES, VARIABLE)
    state = "compiled" if is_compiled() else "compiled, which takes 15 to 30 s at the first use"
    return PartFinding(_PART, True, state, _GIVES)
