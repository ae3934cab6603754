"""Exported files with a planted fault each: what an interpreter of the format must notice.

A mutation takes a parsed file, plants its fault, and gives it back; it fails when it finds nothing to break.
"""

from __future__ import annotations

from tests.chakra_mutations import CHAKRA
from tests.msccl_mutations import MSCCL
from tests.mscclpp_mutations import MSCCLPP, MSCCLPP_MEMORY
from tests.perfetto_mutations import PERFETTO

__all__ = ["CHAKRA", "MSCCL", "MSCCLPP", "MSCCLPP_MEMORY", "PERFETTO"]
