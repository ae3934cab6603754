"""Where a hub listens: the address of the interface asked for."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct

from optcc.errors import InputError

SIOCGIFADDR = 0x8915
"""Linux, netdevice(7): the IPv4 address of an interface."""


def is_loopback(host: str) -> bool:
    """Whether `host`, taken literally, can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listening_address(host: str, interface: str | None = None) -> str:
    """The address at which rank 0's hub listens: that of `interface` (a name or an address), else that of `host`.

    Raises InputError for an unknown interface or host, and for a host whose name means loopback on this machine only.
    """
    if interface is not None:
        return _interface_address(interface)
    try:
        address = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise InputError(f"unknown host: {error}", where="--rendezvous", got=host) from error
    if is_loopback(address) and not is_loopback(host):
        raise InputError(
            "the name means loopback on this machine, where others cannot reach it",
            where="--rendezvous",
            expected="a name or address of a network",
            got=f"{host}, which is {address}",
            hint="Name the interface to listen on with --interface.",
        )
    return address


def _interface_address(interface: str) -> str:
    try:
        return str(ipaddress.ip_address(interface))
    except ValueError:
        pass
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock.fileno(), SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError as error:
            names = ", ".join(name for _, name in socket.if_nameindex())
            raise InputError(
                f"no IPv4 address there: {error}",
                where="--interface",
                expected=f"an address or one of {names}",
                got=interface,
            ) from error
    return socket.inet_ntoa(answer[20:24])
