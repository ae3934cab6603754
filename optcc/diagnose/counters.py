"""Port counters of sysfs, read twice: how much each port carried in between, and which errors it counted.

Names and units are those of Linux' Documentation/ABI/stable/sysfs-class-infiniband: port_xmit_data and port_rcv_data
count words of four bytes. A single reading has errors since the driver was loaded, whenever that was.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from optcc.diagnose.evidence import Evidence, Observation, Sign
from optcc.diagnose.ports import IN, OUT, NicDirections, port
from optcc.machine.sysfs import Sysfs

WORD = 4
DATA = {"port_xmit_data": OUT, "port_rcv_data": IN}
ERRORS = {
    "link_downed": ("the link went down", True),
    "symbol_error": ("symbol errors: cable or transceiver", False),
    "link_error_recovery": ("the link recovered from errors: cable or transceiver", True),
    "local_link_integrity_errors": ("link integrity errors: cable or transceiver", True),
    "port_xmit_discards": ("packets that were not sent: the fabric was busy or down", False),
    "port_rcv_remote_physical_errors": ("packets that the other end had marked bad", False),
    "excessive_buffer_overrun_errors": ("buffers that overran: cable or transceiver", False),
    "port_rcv_errors": ("received packets with errors", False),
    "local_ack_timeout_err": ("acknowledgements that did not come in time", False),
    "packet_seq_err": ("packets out of sequence: some were lost", False),
    "out_of_buffer": ("messages without a buffer", False),
    "rnr_nak_retry_err": ("retries of a receiver that was not ready", False),
    "roce_adp_retrans_to": ("retransmissions after a time-out", False),
}
"""Counter -> what it counts, and whether it stays 0 on a port that is well. counters/ and hw_counters/ both."""
MOST_PART = 1.1
"""Of a port's rate: a tenth more is headers and the clock, what is beyond is a counter that was set back."""
_VALUE = re.compile(r"[0-9]{1,20}")


@dataclass(frozen=True)
class Reading:
    """Counters of one server: NIC's name -> counter -> value."""

    values: Mapping[str, Mapping[str, int]]


def read_counters(tree: Sysfs) -> Reading:
    """All known counters of all ports."""
    found: dict[str, dict[str, int]] = {}
    for device in tree.names("class/infiniband"):
        for number in tree.names(f"class/infiniband/{device}/ports"):
            name = device if number == "1" else f"{device}:{number}"
            below = f"class/infiniband/{device}/ports/{number}"
            values = {}
            for counter in (*DATA, *ERRORS):
                for folder in ("counters", "hw_counters"):
                    text = tree.text(f"{below}/{folder}/{counter}")
                    if _VALUE.fullmatch(text):
                        values[counter] = int(text)
            if values:
                found[name] = values
    return Reading(found)


def counted_between(
    before: Reading | None, after: Reading, seconds: float | None, server: str, where: str, ports: NicDirections
) -> Evidence:
    """What was counted between two readings `seconds` apart, or, of one, what it has. Rates show what ports can do."""
    signs, known, carried = list[Sign](), set[int](), Counter[int]()
    for name, values in after.values.items():
        nic = ports.nic(server, name)
        if nic is None:
            continue
        known.add(nic)
        was = {} if before is None else before.values.get(name, {})
        for counter, value in values.items():
            more = value - was.get(counter, 0)
            if counter in DATA:
                carried[port(nic, DATA[counter])] += max(0, more)
            elif more > 0:
                what, grave = ERRORS[counter]
                when = "since the driver was loaded" if before is None else "in between"
                signs.append(Sign(f"{where}: {name}", f"{counter} {more} {when} ({what})", server, nic,
                                  grave and before is not None))  # fmt: skip
    seen = []
    for number, words in carried.items():
        part = words * WORD / seconds / ports.rates[number] if before and seconds and ports.rates[number] else 0.0
        if 0 < part <= MOST_PART:
            place = f"{where}: {ports.names[number // 2].partition('/')[2]}"
            seen.append(Observation("counters", place, {number: min(part, 1.0)}, least=True))
    if not known:
        return Evidence()
    how = "once" if before is None else f"twice, {seconds:g} s apart" if seconds else "twice"
    return Evidence(tuple(seen), tuple(signs), (f"{where}: counters of {len(known)} NICs of {server}, read {how}",))
