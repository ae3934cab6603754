"""Where a hub listens: the address of the interface asked for."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from contextlib import suppress
from pathlib import Path

from optcc.errors import InputError

SIOCGIFADDR = 0x8915
"""Linux, netdevice(7): the IPv4 address of an interface."""


IPV6_ADDRESSES = Path("/proc/net/if_inet6")
"""Linux: an address a line, its hexadecimal digits first, its interface last."""


def is_loopback(host: str) -> bool:
    """Whether `host`, taken literally, can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listening_address(host: str, interface: str | None = None) -> str:
    """The address at which rank 0's hub listens: that of `interface` (a name or an address), else that of `host`.

    An interface has several: it is `host` where that is one of them, else the first of the same family.
    Raises InputError for an unknown interface or host, and for an interface without such an address. Likewise for a
    host whose name means loopback on this machine only.
    """
    if interface is not None:
        return _interface_address(interface, host)
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


def _interface_address(interface: str, host: str) -> str:
    version = _version(host)
    try:
        given = ipaddress.ip_address(interface)
    except ValueError:
        found = addresses_of(interface)
        if not found:
            names = ", ".join(name for _, name in socket.if_nameindex())
            expected = f"an address or one of {names}"
            raise InputError("no address there", where="--interface", expected=expected, got=interface) from None
    else:
        found = [given]
    like = [address for address in found if address.version == (version or found[0].version)]
    if not like:
        what = f"others come to {host} by IPv{version}"
        expected = f"an interface with an IPv{version} address"
        got = f"{interface}, which has {', '.join(map(str, found))}"
        raise InputError(what, where="--interface", expected=expected, got=got)
    return next((str(address) for address in like if str(address) == host), str(like[0]))


def _version(host: str) -> int | None:
    """By which version of IP others come to `host`; None: its name says nothing here."""
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        pass
    try:
        return 6 if socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0] == socket.AF_INET6 else 4
    except OSError:
        return None


def addresses_of(interface: str, listed: Path = IPV6_ADDRESSES) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Those of the interface of this name, IPv4 first; IPv6 ones that hold on one link only come last, with its name.

    None: there is no such interface, or it has none. `listed` : the kernel's list of IPv6 addresses
    """
    found: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, suppress(OSError):
        answer = fcntl.ioctl(sock.fileno(), SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        found.append(ipaddress.IPv4Address(answer[20:24]))
    with suppress(OSError):
        lines = [line.split() for line in listed.read_text(encoding="ascii").splitlines()]
        here = [ipaddress.IPv6Address(int(line[0], 16)) for line in lines if line[5] == interface]
        found += [address for address in here if not address.is_link_local]
        found += [ipaddress.IPv6Address(f"{address}%{interface}") for address in here if address.is_link_local]
    return found
