"""What a log shows that slows all NICs alike, so that no comparison of NICs would find it.

Lines are NCCL's (``src/transport/net_ib``, ``net.cc``), and those of ``lspci -vvv`` and ``ibv_devinfo``:

    NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'
    Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0               (with GPU-direct it ends in /GDRDMA)
    NET/Socket : Using [0]eth0:192.0.2.1<0>
    NET/IB: IbDev 0 Port 1 qpn 123 mtu 3 LID 5                     (3 is 1024 bytes, 5 is 4096)
    NET/IB : Using [0]mlx5_bond_0:1/RoCE
    ACSCtl: SrcValid+ TransBlk- ReqRedir+ CmpltRedir+
    active_mtu: 1024 (3)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_DISABLED = re.compile(r"GPU Direct RDMA Disabled for ", re.I)
_CHANNEL = re.compile(
    r"Channel \d{1,4}(?:/\d{1,4})? : .{1,80}? via NET/(\w{1,20})/\d{1,4}(/GDRDMA\S{0,20}|/GDR\S{0,20})?"
)
_SOCKET = re.compile(r"NET/Socket : Using|Using network Socket", re.I)
_BOND = re.compile(r"NET/IB[P ]? ?: Using.{0,200}?\b(\w{0,40}bond\w{0,40}):\d")
_PER_CONNECTION = re.compile(r"NCCL_IB_QPS_PER_CONNECTION(?:=| set (?:by environment )?to )\s?(\d{1,4})")
_MTU = re.compile(r"\bqpn \d{1,10} mtu (\d)\b|active_mtu:\s{0,8}\d{3,4} \((\d)\)")
_ACS = re.compile(r"ACSCtl:.{0,80}?(?:SrcValid\+|ReqRedir\+)")
_OFF = re.compile(r"(?:NCCL_IB_DISABLE(?:=| set (?:by environment )?to )1|"
                  r"NCCL_NET_GDR_LEVEL(?:=| set (?:by environment )?to )(?:LOC|0))\b")  # fmt: skip
_MAYBE = re.compile(r"NET/|GPU Direct|ACSCtl|mtu|NCCL_(?:IB_DISABLE|IB_QPS|NET_GDR)|network Socket", re.I)
"""What a line has that is looked at: most lines have nothing of it."""
LEAST_MTU = 4
"""As verbs number them, 2048 bytes: of less, headers take 5 % and more."""
NO_DIRECT = "no GPU-direct RDMA: data goes through the host's memory; load nvidia-peermem, or use DMA-BUF"
DISABLED = "GPU-direct RDMA is disabled for NICs: load nvidia-peermem, or use DMA-BUF"
SOCKETS = "TCP sockets in place of InfiniBand or RoCE"
BOND = "a bond: a connection of one queue pair uses one of its ports; NCCL_IB_QPS_PER_CONNECTION=2 uses both"
MTU = "an MTU below 2048 bytes"
ACS = "ACS is on for a PCI bridge: what GPU and NIC exchange goes by the root complex"
OFF = "GPU-direct RDMA or InfiniBand is switched off in the environment"


def causes_in(text: str, source: str) -> tuple[str, ...]:
    """A sentence for each cause, with the first line that shows it."""
    lines: dict[str, list[int]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not _MAYBE.search(line):
            continue
        for what in _in_line(line):
            lines.setdefault(what, []).append(number)
        channel, pairs = _CHANNEL.search(line), _PER_CONNECTION.search(line)
        if channel and channel[2]:  # some NICs have it; what is slow on the others is no cause for all
            lines.setdefault("direct", []).append(number)
        if pairs and int(pairs[1]) > 1:
            lines.setdefault("several", []).append(number)
    for cleared, by in ((NO_DIRECT, "direct"), (BOND, "several")):
        if by in lines:
            del lines[by]
            lines.pop(cleared, None)
    return tuple(f"{what} ({source}:{found[0]}, lines: {len(found)})" for what, found in lines.items())


def _in_line(line: str) -> Iterator[str]:
    """The causes that a line shows."""
    if channel := _CHANNEL.search(line):
        if not channel[2]:
            yield SOCKETS if channel[1] == "Socket" else NO_DIRECT
    elif _DISABLED.search(line):
        yield DISABLED
    elif _SOCKET.search(line):
        yield SOCKETS
    elif _BOND.search(line):
        yield BOND
    if _OFF.search(line):
        yield OFF
    if (mtu := _MTU.search(line)) and int(mtu[1] or mtu[2]) < LEAST_MTU:
        yield MTU
    if _ACS.search(line):
        yield ACS
