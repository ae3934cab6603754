"""With this folder in PYTHONPATH, Python finds a twin where the GPU's module is: see `test_cuda_wires`."""

import sys
from types import ModuleType

from tests.cuda_twin import SharedTwin

twin = ModuleType("optcc.runtime.devices.cuda")
twin.Gpu = lambda index: SharedTwin(index)  # type: ignore[attr-defined]
twin.gpu_count = lambda: 2  # type: ignore[attr-defined]
sys.modules[twin.__name__] = twin
