"""What tools tell of a host, in the forms in which they print it: names, addresses and numbers belong to no machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence


def ibstat(
    nics: Mapping[str, int],
    down: Sequence[str] = (),
    link: str = "InfiniBand",
    models: Mapping[str, str] | None = None,
    guids: Mapping[str, tuple[int, int]] | None = None,
) -> str:
    """rdma-core's ibstat: name -> Gb/s; by name the model, else MT4129, and system image and node GUID."""
    cards = []
    for i, (name, rate) in enumerate(nics.items()):
        state, physical = ("Down", "Disabled") if name in down else ("Active", "LinkUp")
        model, (image, node) = (models or {}).get(name, "MT4129"), (guids or {}).get(name, (16 * i, 16 * i))
        cards.append(
            f"CA '{name}'\n\tCA type: {model}\n\tNumber of ports: 1\n\tFirmware version: 28.39.1002\n"
            f"\tHardware version: 0\n\tNode GUID: 0x{node:016x}\n\tSystem image GUID: 0x{image:016x}\n\tPort 1:\n"
            f"\t\tState: {state}\n\t\tPhysical state: {physical}\n\t\tRate: {rate}\n\t\tBase lid: {i + 1}\n\t\tLMC: 0\n"
            f"\t\tSM lid: 1\n\t\tCapability mask: 0xa751e848\n\t\tPort GUID: 0x{i:016x}\n\t\tLink layer: {link}\n"
        )
    return "".join(cards)


def ibdev2netdev(nics: Sequence[str], down: Sequence[str] = ()) -> str:
    return "".join(f"{nic} port 1 ==> ib{i} ({'Down' if nic in down else 'Up'})\n" for i, nic in enumerate(nics))


def rdma_link(nics: Sequence[str], down: Sequence[str] = ()) -> str:
    """iproute2's ``rdma link -j``."""
    states = {True: ("DOWN", "DISABLED"), False: ("ACTIVE", "LINK_UP")}
    links = []
    for i, nic in enumerate(nics):
        state, physical = states[nic in down]
        links.append(
            {"ifindex": i, "ifname": nic, "port": 1, "state": state, "physical_state": physical, "netdev": f"e{i}"}
        )
    return json.dumps(links)


def rocm_smi(gpus: int, link: str = "XGMI") -> str:
    """``rocm-smi --showtopo``."""
    names = [f"GPU{g}" for g in range(gpus)]

    def table(title: str, cell: str) -> list[str]:
        rows = ["".join(f"{('0' if row == column else cell):<13}" for column in names) for row in names]
        return [f"{title:=^80}", " " * 7 + "".join(f"{name:<13}" for name in names)] + [
            f"{name:<7}{row}" for name, row in zip(names, rows, strict=True)
        ]

    lines = [f"{' ROCm System Management Interface ':=^80}"]
    for title, cell in (("Weight", "15"), ("Hops", "1"), ("Link Type", link)):
        lines += [*table(f" {title} between two GPUs ", cell), ""]
    lines.append(f"{' Numa Nodes ':=^80}")
    for g in range(gpus):
        lines += [f"GPU[{g}]\t\t: (Topology) Numa Node: {g // 4}", f"GPU[{g}]\t\t: (Topology) Numa Affinity: {g // 4}"]
    return "\n".join([*lines, f"{' End of ROCm SMI Log ':=^80}"]) + "\n"


def amd_smi(gpus: int) -> str:
    """``amd-smi topology``."""
    addresses = [f"0000:{16 * g + 12:02x}:00.0" for g in range(gpus)]

    def table(title: str, same: str, cell: str) -> list[str]:
        head = " " * 13 + " ".join(f"{address:12}" for address in addresses)
        rows = [" ".join(f"{(same if a == b else cell):12}" for b in addresses) for a in addresses]
        return [f"{title}:", head] + [f"{a:13}{row}" for a, row in zip(addresses, rows, strict=True)] + [""]

    tables = (("ACCESS TABLE", "ENABLED", "ENABLED"), ("WEIGHT TABLE", "0", "15"), ("HOPS TABLE", "0", "1"),
              ("LINK TYPE TABLE", "SELF", "XGMI"), ("NUMA BW TABLE", "N/A", "50000-50000"))  # fmt: skip
    return "\n".join(line for each in tables for line in table(*each))


def nccl_log(
    hosts: Sequence[str], nics: Sequence[str], speed: int = 400_000, gpus: int = 4, fused: str = "", of: str = ""
) -> str:
    """NCCL's INFO of its network: `gpus` ranks a host, GPU g sending over NIC g; Mb/s; a NIC `fused` of others.

    of : the lines of this host alone
    """
    lines = []
    for h, host in enumerate(hosts):
        for g in range(gpus):
            before, rank, there = f"{host}:{100 + g}:{200 + g} [{g}] NCCL INFO", h * gpus + g, (h + 1) % len(hosts)
            for n, nic in enumerate(nics):
                ends = f"{nic}:uverbs{n}:1/RoCE provider=Mlx5 speed={speed} context=0x55 pciPath=/sys/devices/pci ar=0"
                lines.append(f"{before} NET/IB: [{n}] {ends}")
                lines.append(f"{before} NET/IB : Made virtual device [{n}] name={nic} speed={speed} ndevs=1")
            cards = " ".join(f"[{n}]{nic}:1/RoCE" for n, nic in enumerate(nics))
            lines.append(f"{before} NET/IB : Using {cards} [RO]; OOB eth0:192.0.2.{h + 1}<0>")
            if fused:
                count = fused.count("+") + 1
                made = f"[{len(nics)}] name={fused} speed={count * speed} ndevs={count}"
                lines.append(f"{before} NET/IB : Made virtual device {made}")
            lines.append(
                f"{before} comm 0x55 rank {rank} nranks {len(hosts) * gpus} cudaDev {g} nvmlDev {g} busId 1b000"
            )
            card = len(nics) if fused else g % len(nics)
            for way, one, other in (("send", rank, there * gpus + g), ("receive", there * gpus + g, rank)):
                ends = f"Channel 00/0 : {one}[{g}] -> {other}[{g}]"
                lines.append(f"{before} {ends} [{way}] via NET/IB/{card}/GDRDMA")
    return "\n".join(line for line in lines if line.startswith(of)) + "\n"
