"""What operators' tools print, in their documented formats, written here: names and numbers belong to no machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

LANES = {50: "12.5", 100: "25.0", 200: "50.0", 400: "100.0"}
BAUD = {10: "2.5", 40: "10.0", 100: "25.78125", 200: "53.125", 400: "106.25"}
GENERATIONS = {100: "EDR", 200: "HDR", 400: "NDR"}


def ibstatus(nics: Mapping[str, int], down: Sequence[str] = (), link: str = "InfiniBand") -> str:
    return "\n".join(
        f"Infiniband device '{name}' port 1 status:\n"
        f"\tdefault gid:\t fe80:0000:0000:0000:0000:00ff:fe00:{i:04x}\n\tbase lid:\t 0x{i + 1:x}\n\tsm lid:\t\t 0x1\n"
        f"\tstate:\t\t {'1: DOWN' if name in down else '4: ACTIVE'}\n"
        f"\tphys state:\t {'3: Disabled' if name in down else '5: LinkUp'}\n"
        f"\trate:\t\t {rate} Gb/sec (4X {GENERATIONS.get(rate, 'SDR')})\n\tlink_layer:\t {link}\n"
        for i, (name, rate) in enumerate(nics.items())
    )


def rdma_link(nics: Sequence[str], down: Sequence[str] = (), old: bool = False) -> str:
    lines = []
    for i, name in enumerate(nics):
        head = f"{i}/1: {name}/1:" if old else f"link {name}/1"
        state = "state DOWN physical_state DISABLED" if name in down else "state ACTIVE physical_state LINK_UP"
        lines.append(f"{head} {state} netdev ens{i}f0np0 \n")
    return "".join(lines)


def devinfo(nics: Mapping[str, int], down: Sequence[str] = (), verbose: bool = True) -> str:
    cards = []
    for i, (name, rate) in enumerate(nics.items()):
        more = (
            f"\t\t\tmax_msg_sz:\t\t0x40000000\n\t\t\tactive_width:\t\t4X (2)\n"
            f"\t\t\tactive_speed:\t\t{LANES[rate]} Gbps (128)\n\t\t\tphys_state:\t\tLINK_UP (5)\n"
            f"\t\t\tGID[  0]:\t\tfe80:0000:0000:0000:0000:00ff:fe00:{i:04x}\n"
            f"\t\t\tGID[  3]:\t\t::ffff:198.51.100.{i + 1}\n"
        )
        cards.append(
            f"hca_id:\t{name}\n\ttransport:\t\t\tInfiniBand (0)\n\tfw_ver:\t\t\t\t28.39.1002\n"
            f"\tnode_guid:\t\t\t0000:00ff:fe00:{16 * i:04x}\n\tsys_image_guid:\t\t\t0000:00ff:fe00:{16 * i:04x}\n"
            f"\tvendor_id:\t\t\t0x02c9\n\tvendor_part_id:\t\t\t4129\n\tphys_port_cnt:\t\t\t1\n\t\tport:\t1\n"
            f"\t\t\tstate:\t\t\t{'PORT_DOWN (1)' if name in down else 'PORT_ACTIVE (4)'}\n"
            f"\t\t\tmax_mtu:\t\t4096 (5)\n\t\t\tsm_lid:\t\t\t1\n\t\t\tport_lid:\t\t{i + 1}\n"
            f"\t\t\tlink_layer:\t\tEthernet\n{more if verbose else ''}\n"
        )
    return "".join(cards)


def fabric(
    hosts: Sequence[str], nics: Mapping[str, int], slow: Mapping[str, int] | None = None, one_line: bool = False
) -> str:
    """iblinkinfo: `slow` by "host nic", 0 for no link."""
    lines = []
    for h, host in enumerate(hosts):
        for n, (nic, rate) in enumerate(nics.items()):
            own = (slow or {}).get(f"{host} {nic}", rate)
            up = f"4X {BAUD[own]:>13} Gbps Active/  LinkUp" if own else "               Down/ Polling"
            peer = f'{n + 1:3d}   {h + 1}[  ] "MF0;leaf{n}:MQM9700/U1" ( )' if own else '            [  ] "" ( )'
            place = f"0x0002c90300{h:02x}{n:02x}79"
            if one_line:
                lines.append(
                    f'{place} "            {host} {nic}"  {h + 5}    1[  ] ==( {up})==>  0x0002c90200000001 {peer}'
                )
            else:
                lines += [f"CA: {host} {nic}:", f"      {place}      {h + 5}    1[  ] ==( {up})==>     {peer}"]
    return "\n".join(lines) + "\n"


def mlxlink(speed: str, state: str = "Active", command: str = "", advice: str = "No issue was observed") -> str:
    return (
        f"{command}\nOperational Info\n----------------\nState                              : {state}\n"
        f"Physical state                     : LinkUp\nSpeed                              : {speed}\n"
        "Width                              : 4x\nFEC                                : Standard RS-FEC\n"
        "Auto Negotiation                   : ON\n\nTroubleshooting Info\n--------------------\n"
        "Status Opcode                      : 0\nGroup Opcode                       : N/A\n"
        f"Recommendation                     : {advice}\n"
    )


def perfquery(lid: int = 37, **counters: int) -> str:
    names = {"SymbolErrorCounter": 0, "LinkErrorRecoveryCounter": 0, "LinkDownedCounter": 0, "PortRcvErrors": 0}
    lines = [f"{name}:{'.' * (33 - len(name))}{value}" for name, value in (names | counters).items()]
    head = f"# Port counters: Lid {lid} port 1 (CapMask: 0x5300)\nPortSelect:......................1\n"
    return head + "CounterSelect:...................0x0000\n" + "\n".join(lines) + "\n"


def ethtool_s(command: str = "", **counters: int) -> str:
    values = {"rx_packets": 62, "rx_crc_errors_phy": 0, "link_down_events_phy": 0} | counters
    return f"{command}\nNIC statistics:\n" + "".join(f"     {name}: {value}\n" for name, value in values.items())


def metrics(node: str, gpu: int, gbs: float, nodes: int = 2, ranks: int = 4, size: str = "1-2GB") -> str:
    """NCCL Inspector's for Prometheus."""
    labels = (
        f'version="v5.1",slurm_job_id="7",node="{node}",gpu="GPU{gpu}",comm_name="world",n_nodes="{nodes}",'
        f'nranks="{ranks}",collective="AllReduce",message_size="{size}",algo_proto="RING_SIMPLE"'
    )
    return f"nccl_bus_bandwidth_gbs{{{labels}}} {gbs:.6g}\nnccl_collective_exec_time_microseconds{{{labels}}} 5563\n"


def mooncake(own: str, nic: str, peer: str, peer_nic: str, words: str = "transport retry counter exceeded") -> str:
    """The transfer engine's log."""
    return (
        f"I1116 22:49:45.799160 3486327 transfer_engine.cpp:146] Transfer Engine RPC using P2P handshake, listening on "
        f"{own}:16068\n"
        f"E1116 22:50:59.104586 27322 worker_pool.cpp:291] Worker: Process failed for slice (opcode: 1, source_addr: "
        f"0x7f20fe0f1680, length: 65536, dest_addr: 0x7f3d820f3a80, local_nic: {nic}, "
        f"peer_nic: {peer}:15729@{peer_nic}, "
        f"dest_rkey: 2116517, retry_cnt: 0): {words}\n"
    )
