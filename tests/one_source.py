"""A topology of one text alone, with its NICs on rails."""

from __future__ import annotations

from optcc.discover.given import Given
from optcc.discover.nccl_xml import nccl_servers
from optcc.discover.rails import on_rails
from optcc.discover.smi_text import smi_server
from optcc.discover.topology import Topology


def read_nccl_xml(data: bytes, path: str, given: Given) -> Topology:
    """The servers of a dump."""
    return on_rails(lambda given: nccl_servers(data, path, given), given)


def read_smi(text: str, path: str, given: Given) -> Topology:
    """The server of a matrix."""
    return on_rails(lambda given: smi_server(text, path, given), given)
