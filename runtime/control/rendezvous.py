"""Which rank this process is, and where the hub is: from what the user says, or from the environment of a starter.

The variables are those that torchrun, Open MPI's and MPICH's mpirun, and Slurm's srun set for every process they start.
Sources: https://docs.pytorch.org/docs/stable/elastic/run.html, https://docs.open-mpi.org "Environment variables set for
MPI applications", https://slurm.schedmd.com/srun.html. A starter inside another one counts before it: torchrun before
mpirun before Slurm, whose own variables every process inside an allocation has.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import re
import socket
import stat
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from optcc.errors import InputError
from optcc.runtime.control.connecting import Address

# Where a hub listens: the address of the interface asked for.

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


# The secret that all processes of a job share: from the environment, or from a file that only its owner can read.

SECRETS = ("OPTCC_SECRET", "OPTCC_SECRET_FILE")
"""The variables of the environment that tell the secret, or where it is."""

SECRET_CHARACTERS = 16
"""The fewest of a secret: who has listened to a greeting can try out a shorter one."""


def secret_of(environ: Mapping[str, str], host: str) -> str:
    """The job's secret from OPTCC_SECRET, or from the file OPTCC_SECRET_FILE, which only its owner may read.

    Raises InputError when there is none although `host` is not loopback, when it is short, or when both are given.
    """
    text, path = environ.get("OPTCC_SECRET"), environ.get("OPTCC_SECRET_FILE")
    hint = "Make one with: openssl rand -hex 32"
    if text is not None and path is not None:
        raise InputError("two secrets", where="OPTCC_SECRET and OPTCC_SECRET_FILE", expected="one of them")
    if path is not None:
        text = _read(path)
    if text is None:
        if is_loopback(host):
            return ""
        raise InputError(
            "no secret, although other machines can reach the hub",
            where="OPTCC_SECRET or OPTCC_SECRET_FILE",
            expected="the same secret on all machines",
            hint=hint,
        )
    if len(text) < SECRET_CHARACTERS:
        where = "OPTCC_SECRET" if path is None else "OPTCC_SECRET_FILE"
        raise InputError(
            "too short a secret",
            where=where,
            expected=f"{SECRET_CHARACTERS} characters or more",
            got=len(text),
            hint=hint,
        )
    return text


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            mode = os.fstat(file.fileno())
            if not stat.S_ISREG(mode.st_mode) or mode.st_uid not in (0, os.getuid()) or mode.st_mode & 0o077:
                raise InputError(
                    "others may know what it holds",
                    where=f"OPTCC_SECRET_FILE, {path}",
                    expected="a file of your own that only you can read (chmod 600)",
                    got=stat.filemode(mode.st_mode),
                )
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=f"OPTCC_SECRET_FILE, {path}") from error


# This process's place

PORT = 29700
"""Where the hub listens when nothing says otherwise."""


@dataclass(frozen=True)
class Membership:
    """Rank `rank` of `world` in job `job`, whose hub listens at `address`; all processes of it share `secret`.

    The secret is empty only if the address is loopback and none was given. Then every process of this machine that
    knows the job's name could be a rank.

    terms : what this process was told of the job, by name: all ranks compare it; wrong : why that cannot be
    """

    rank: int
    world: int
    address: Address
    job: str
    secret: str = field(repr=False)
    terms: Mapping[str, str] = field(default_factory=dict)
    wrong: str = ""


@dataclass(frozen=True)
class _Starter:
    """What one starter has said, each with the variable that said it; None: nothing."""

    rank: tuple[str, int]
    world: tuple[str, int]
    host: str | None
    port: int
    job: str
    missing: str
    """For people: what would have told the host."""


def find(
    environ: Mapping[str, str],
    *,
    rendezvous: str | None = None,
    rank: int | None = None,
    world: int | None = None,
    job: str | None = None,
) -> Membership | None:
    """This process's place in a job that somebody else starts; None where nothing speaks of one.

    Parameters
    ----------
    environ : OPTCC_RENDEZVOUS (HOST:PORT), OPTCC_PORT and OPTCC_JOB stand for options, OPTCC_SECRET or
        OPTCC_SECRET_FILE hold the secret; and what starters set
    rendezvous, rank, world, job : what the user says, which counts before the environment

    Raises InputError naming the variable or option that is missing, malformed or contradicts another.
    """
    where = rendezvous or environ.get("OPTCC_RENDEZVOUS")
    told_all = None not in (where, rank, world)
    starter = None if told_all else _torch(environ) or _mpi(environ) or _slurm(environ)
    if starter is None and where is None and rank is None and world is None:
        return None
    if (rank is None) != (world is None):
        raise InputError("one without the other", where="--rank and --world", expected="both", got=rank or world)
    if rank is None or world is None:
        if starter is None:
            raise InputError(
                "who this process is remains open",
                where="--rank and --world",
                expected="both, or a starter that sets them (torchrun, mpirun, srun)",
            )
        (rank_name, rank), (world_name, world) = starter.rank, starter.world
    else:
        rank_name, world_name = "--rank", "--world"
    if world < 1:
        raise InputError("no ranks", where=world_name, expected="1 or more", got=world)
    if not 0 <= rank < world:
        raise InputError("not a rank of this job", where=rank_name, expected=f"0 to {world - 1}", got=rank)
    address = _address(environ, where, "--rendezvous" if rendezvous else "OPTCC_RENDEZVOUS", starter)
    name = job or environ.get("OPTCC_JOB") or (starter.job if starter else "optcc")
    return Membership(rank, world, address, name, secret_of(environ, address[0]))


def _torch(environ: Mapping[str, str]) -> _Starter | None:
    if not {"RANK", "WORLD_SIZE"} & environ.keys():
        return None
    port = _number(environ, "MASTER_PORT") if "MASTER_PORT" in environ else PORT - 1
    return _Starter(
        ("RANK", _number(environ, "RANK")),
        ("WORLD_SIZE", _number(environ, "WORLD_SIZE")),
        environ.get("MASTER_ADDR"),
        port + 1,  # at MASTER_PORT itself torch's own store listens
        f"torch-{environ.get('TORCHELASTIC_RUN_ID', 'none')}",
        "MASTER_ADDR",
    )


def _mpi(environ: Mapping[str, str]) -> _Starter | None:
    found = []
    for rank, world, local in (
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    ):
        if {rank, world} & environ.keys():
            size = _number(environ, world)
            alone = local in environ and _number(environ, local) == size
            host = "127.0.0.1" if alone else environ.get("MASTER_ADDR")
            job = f"mpi-{environ.get('PMIX_NAMESPACE', 'none')}"
            found.append(_Starter((rank, _number(environ, rank)), (world, size), host, PORT, job, "MASTER_ADDR"))
    if len(found) == 2 and (found[0].rank[1], found[0].world[1]) != (found[1].rank[1], found[1].world[1]):
        raise InputError(
            "two starters disagree",
            where="OMPI_COMM_WORLD_RANK and PMI_RANK",
            expected="the same rank and size",
            got=f"{found[0].rank[1]} of {found[0].world[1]}, {found[1].rank[1]} of {found[1].world[1]}",
            hint="Say --rank and --world.",
        )
    return found[0] if found else None


def _slurm(environ: Mapping[str, str]) -> _Starter | None:
    if "SLURM_PROCID" not in environ:  # inside an allocation, but not started by srun
        return None
    world = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST")
    job = _number(environ, "SLURM_JOB_ID")
    return _Starter(
        ("SLURM_PROCID", _number(environ, "SLURM_PROCID")),
        (world, _number(environ, world)),
        first_host(nodes) if nodes else None,
        PORT + job % 1000,  # jobs that share a machine get different ports
        f"slurm-{job}.{environ.get('SLURM_STEP_ID', '0')}",
        "SLURM_STEP_NODELIST",
    )


def first_host(nodes: str) -> str:
    """The first name in Slurm's list of hosts: ``rack[2-3]n[07,09-12],login`` begins with ``rack2n07``."""
    match = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    if match is None:
        raise InputError("not a list of hosts", where="SLURM_STEP_NODELIST", got=nodes)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", match.group())


def _address(environ: Mapping[str, str], where: str | None, option: str, starter: _Starter | None) -> Address:
    if where is not None:
        match = re.fullmatch(r"\[?(.+?)\]?:(\d{1,5})", where, re.ASCII)
        if match is None or not 0 < int(match[2]) < 65536:
            raise InputError("not an address", where=option, expected="HOST:PORT", got=where)
        return match[1], int(match[2])
    if starter is None or starter.host is None:
        missing = f" or {starter.missing}" if starter else ""
        raise InputError("nothing says where rank 0 is", where=f"--rendezvous{missing}", expected="HOST:PORT")
    port = _number(environ, "OPTCC_PORT") if "OPTCC_PORT" in environ else starter.port
    if not 0 < port < 65536:
        raise InputError("not a port", where="OPTCC_PORT", expected="1 to 65535", got=port)
    return starter.host, port


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name)
    if text is None:
        raise InputError("not set, although its companions are", where=name, expected="a number")
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise InputError("not a number", where=name, got=text)
    return int(text)
