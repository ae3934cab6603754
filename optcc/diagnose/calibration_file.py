"""A topology that `optcc calibrate` wrote, as evidence: the rate of each NIC each way, with all NICs busy."""

from __future__ import annotations

from optcc.diagnose.averages import LEAST_NOISE
from optcc.diagnose.evidence import NOTHING, Evidence, Observation
from optcc.diagnose.ports import IN, OUT, Ports, port
from optcc.discover.given import Given
from optcc.discover.yaml_file import read_yaml
from optcc.errors import InputError


def looks_like_calibration(text: str) -> bool:
    """optcc's YAML with measured rates."""
    return "\nmeasured:" in text or text.startswith("measured:")


def read_calibration(text: str, source: str, ports: Ports) -> Evidence:
    """One observation for each port that was measured. Raises InputError where the file cannot be read."""
    found = read_yaml(text.encode(), source, Given())
    if found.measured is None:
        raise InputError("nothing measured", where=source, expected="what optcc calibrate -o writes")
    spread = max(LEAST_NOISE, float(found.measured.spread))
    seen, unknown = list[Observation](), 0
    for server in found.cluster.servers:
        name = ports.server(server.name)
        for nic in server.nics:
            number = None if name is None else ports.nic(name, nic.name)
            if number is None:
                unknown += 1
                continue
            if f"{server.name}/{nic.name}" not in found.measured.nameplate:
                continue
            for way, rate in ((OUT, nic.out_rate), (IN, nic.in_rate)):
                healthy = ports.rates[port(number, way)]
                part = float(rate) / healthy if healthy else 0.0
                where = f"{source}: {server.name}/{nic.name}"
                seen.append(Observation("calibrate", where, {port(number, way): max(part, NOTHING)}, spread=spread))
    unused = (f"{source}: {unknown} NICs that the topology does not have",) if unknown else ()
    read = f"{source}: optcc calibrate of {found.measured.date}, {len(seen)} ports"
    return Evidence(tuple(seen), (), (read,), unused)
