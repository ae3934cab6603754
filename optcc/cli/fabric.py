"""`optcc fabric`: RDMA NICs that are played, made, changed and watched."""

from __future__ import annotations

import shlex
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from optcc.cli.options import emit, json_option
from optcc.errors import InputError
from optcc.values.units import format_rate, format_size, parse_rate, parse_seconds, parse_size

if TYPE_CHECKING:
    from optcc.fabric.played import PlayedNic

_FOLDER = "/dev/shm/optcc-fabric"
_at = click.option(
    "--fabric", "folder", envvar="PLAYED_FABRIC", default=_FOLDER, show_default=True, show_envvar=True,
    metavar="DIR", help="The fabric's folder, in shared memory.",
)  # fmt: skip
_nics = click.argument("nics", nargs=-1, required=True, metavar="HOST/NIC...")


@click.group()
def fabric() -> None:
    """RDMA NICs that are played: any program that uses libibverbs runs over them, and their links can be broken.

    Bytes are real, NICs are not: what runs over them says nothing about the speed of real ones.
    NICs go by host1/mlx5_0.
    """


@fabric.command()
@click.option("--hosts", type=click.IntRange(1), default=2, show_default=True)
@click.option("--nics", type=click.IntRange(1), default=1, show_default=True, help="Of each host.")
@click.option("--rate", metavar="RATE", help="Of each NIC, both ways; without it as fast as the machine is.")
@click.option("--latency", default="0s", show_default=True, metavar="TIME", help="From one NIC to another.")
@click.option("--roce", is_flag=True, help="NICs go by GID, as over Ethernet; else by LID, as over InfiniBand.")
@click.option("--name", default="mlx5_", show_default=True, help="Of devices; a number follows.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of losses and jitter.")
@_at
@json_option
def make(
    hosts: int, nics: int, rate: str | None, latency: str, roce: bool, name: str, seed: int, folder: str, as_json: bool
) -> None:
    """A new fabric, of which no program knows before it is told (optcc fabric env)."""
    from optcc.fabric.played import PlayedFabric

    made = PlayedFabric.make(
        folder, hosts=hosts, nics=nics, rate=0 if rate is None else int(parse_rate(rate, "--rate")),
        latency_s=float(parse_seconds(latency, "--latency")), roce=roce, name=name, seed=seed,
    )  # fmt: skip
    told = {"fabric": str(made.folder), "nics": made.every(), "library": made.env(0)["LD_LIBRARY_PATH"], "played": True}
    emit(as_json, told, lambda: click.echo(f"played: {made.folder}, {hosts} hosts of {nics} NICs"))


@fabric.command()
@click.option("--host", type=click.IntRange(0), required=True)
@_at
@json_option
def env(host: int, folder: str, as_json: bool) -> None:
    """What a program's environment must have to find a host's NICs: eval "$(optcc fabric env --host 1)"."""
    from optcc.fabric.played import PlayedFabric

    found = PlayedFabric(folder).env(host)
    emit(as_json, found, lambda: click.echo("\n".join(f"export {k}={shlex.quote(v)}" for k, v in found.items())))


@fabric.command("set")
@_nics
@click.option("--rate", metavar="RATE", help="Both ways.")
@click.option("--rate-out", metavar="RATE")
@click.option("--rate-in", metavar="RATE")
@click.option("--latency", metavar="TIME")
@_at
def set_(
    nics: tuple[str, ...], rate: str | None, rate_out: str | None, rate_in: str | None, latency: str | None, folder: str
) -> None:
    """Change NICs, while bytes fly."""
    from optcc.fabric.played import PlayedFabric

    def of(text: str | None, where: str) -> int | None:
        return None if text is None else int(parse_rate(text, where))

    played = PlayedFabric(folder)
    for nic in nics:
        played.set(
            nic, rate=of(rate, "--rate"), rate_out=of(rate_out, "--rate-out"), rate_in=of(rate_in, "--rate-in"),
            latency_s=None if latency is None else float(parse_seconds(latency, "--latency")),
        )  # fmt: skip


@fabric.command()
@_nics
@click.option("--gone", is_flag=True, help="The device itself: it takes no more work.")
@_at
def down(nics: tuple[str, ...], gone: bool, folder: str) -> None:
    """Links go down, which programs on their hosts are told."""
    from optcc.fabric.played import PlayedFabric

    for nic in nics:
        PlayedFabric(folder).down(nic, gone=gone)


@fabric.command()
@_nics
@_at
def up(nics: tuple[str, ...], folder: str) -> None:
    """Links come up, and nothing is lost on these NICs any more."""
    from optcc.fabric.played import PlayedFabric

    for nic in nics:
        PlayedFabric(folder).up(nic)


@fabric.command()
@_nics
@click.option("--way", type=click.Choice(["out", "in", "both"]), default="both", show_default=True)
@click.option("--what", type=click.Choice(["all", "data", "acks"]), default="all", show_default=True)
@click.option("--one-in", type=click.IntRange(1), default=1, show_default=True, help="So many frames; 1 is all.")
@_at
def hole(nics: tuple[str, ...], way: Any, what: Any, one_in: int, folder: str) -> None:
    """NICs lose what leaves or comes, and nobody is told (optcc fabric up mends them)."""
    from optcc.fabric.played import PlayedFabric

    for nic in nics:
        PlayedFabric(folder).lose(nic, way=way, what=what, one_in=one_in)


@fabric.command()
@click.argument("nic", metavar="HOST/NIC")
@click.argument("to", metavar="HOST/NIC")
@click.option("--mend", is_flag=True, help="It is whole again.")
@_at
def path(nic: str, to: str, mend: bool, folder: str) -> None:
    """What goes from the first NIC to the second is lost, and nobody is told. The way back is another."""
    from optcc.fabric.played import PlayedFabric

    PlayedFabric(folder).path(nic, to, lost=not mend)


@fabric.command()
@_nics
@click.option("--most", required=True, metavar="TIME", help="Up to so much is added to each frame's latency.")
@_at
def jitter(nics: tuple[str, ...], most: str, folder: str) -> None:
    """Latency differs from frame to frame, at random by the fabric's seed. The order stays."""
    from optcc.fabric.played import PlayedFabric

    for nic in nics:
        PlayedFabric(folder).set(nic, jitter_s=float(parse_seconds(most, "--most")))


@fabric.command()
@click.option("--every", default="1s", show_default=True, metavar="TIME")
@click.option("--times", type=click.IntRange(1), help="Look so often; without it until it is interrupted.")
@_at
@json_option
def watch(every: str, times: int | None, folder: str, as_json: bool) -> None:
    """What NICs carry, lose and send again, and how they are; live."""
    from optcc.fabric.played import PlayedFabric

    played, pause = PlayedFabric(folder), float(parse_seconds(every, "--every"))
    looks = 0
    while times is None or looks < times:
        if looks:
            time.sleep(pause)
        looks += 1
        told = {nic.name: _told(nic) for nic in map(played.nic, played.every())}
        emit(as_json, {"played": True, "nics": told}, partial(_show, told))


def _told(nic: PlayedNic) -> dict[str, Any]:
    state = {"state": nic.state, "rate_out": nic.rate_out, "rate_in": nic.rate_in}
    return {**state, "lose_out": nic.lose_out, "lose_in": nic.lose_in, **nic.counters}


def _show(told: dict[str, dict[str, Any]]) -> None:
    width = max(map(len, told))
    click.echo(f"{'played':{width}}  state  {'rate':>10}  {'sent':>10}  {'received':>10}   lost  again")
    for name, nic in told.items():
        rate = format_rate(min(nic["rate_out"], nic["rate_in"])) if nic["rate_out"] and nic["rate_in"] else "-"
        state = "silent" if 1 in (nic["lose_out"], nic["lose_in"]) and nic["state"] == "up" else nic["state"]
        sent, received = format_size(nic["bytes_out"]), format_size(nic["bytes_in"])
        numbers = f"{rate:>10}  {sent:>10}  {received:>10}  {nic['lost']:>5}  {nic['sent_again']:>5}"
        click.echo(f"{name:{width}}  {state:6} {numbers}")


@fabric.command()
@click.option("--size", default="64MiB", show_default=True, metavar="SIZE", help="Of the buffer on every host.")
@_at
@json_option
def bound(size: str, folder: str, as_json: bool) -> None:
    """The least time of an AllReduce on the fabric as it is now."""
    from optcc.api import lower_bound
    from optcc.fabric.played import PlayedFabric

    cluster = PlayedFabric(folder).cluster()
    if any(not rank.out_rate or not rank.in_rate for rank in cluster.ranks):
        raise InputError("a host has no NIC left", where=folder, expected="one each way", got="none")
    nbytes = parse_size(size, "--size")
    seconds = float(lower_bound(cluster, nbytes).seconds)
    told = {"played": True, "bound_s": seconds, "size_bytes": nbytes}
    emit(as_json, told, lambda: click.echo(f"played: {size} per host, no faster than {seconds * 1e3:.3f} ms"))


@fabric.command()
@_at
def remove(folder: str) -> None:
    """Remove a fabric and all that is in its folder."""
    from optcc.fabric.played import PlayedFabric

    PlayedFabric(Path(folder)).remove()
