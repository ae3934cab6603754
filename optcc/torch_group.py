"""The torch.distributed backend "optcc": a process group whose collectives are a communicator's.

    import optcc.pytorch  # registers it
    torch.distributed.init_process_group("optcc")

AllReduce, broadcast, allgather, reduce-scatter and barrier go by the communicator; what it has no schedule or no type
for, by a Gloo group beside it, which does not survive a NIC. Needs torch.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]

from optcc.cluster import Cluster
from optcc.communicator import Communicator, read_cluster
from optcc.errors import InputError
from optcc.runtime.member import JOIN_S
from optcc.runtime.overseer import Overseer
from optcc.runtime.rendezvous import Membership

NAME = "optcc"

_OPS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "avg",
    dist.ReduceOp.PRODUCT: "prod",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
}

_TYPES = {
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
}
"""Types that the communicator reduces; any other is moved as bytes, and reduced by Gloo."""

_COMPLEX = {torch.complex64, torch.complex128}
"""Summed as pairs of real numbers."""


@dataclass(frozen=True)
class Options:
    """``pg_options=`` of `init_process_group`: the cluster and transport as of `Communicator`.

    cluster : None: what OPTCC_TOPOLOGY names, if it is set; transport : None: OPTCC_TRANSPORT, or "local"
    reproducible : as of `Communicator`; by default sums are rounded as if nothing had failed
    """

    cluster: Cluster | str | None = None
    transport: str | None = None
    reproducible: bool = True

    _timeout: timedelta | None = None  # torch looks for it


class OptccGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A process group of torch's, with the methods that its collectives call.

    communicator : what they go by, for its `events` and `strike`
    """

    def __init__(self, communicator: Communicator, gloo: Any) -> None:
        super().__init__(communicator.rank, communicator.world)
        self.communicator, self._gloo = communicator, gloo

    # --- by the communicator -----------------------------------------------------------------------------------------

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        """Each in place."""
        opts = opts or dist.AllreduceOptions()
        return self._reduced(tensors, opts) or self._gloo.allreduce(tensors, opts)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        """Each in place."""
        opts = opts or dist.AllreduceCoalescedOptions()
        return self._reduced(tensors, opts) or self._gloo.allreduce_coalesced(tensors, opts)

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        """Each from `opts.rootRank`."""
        root = opts.rootRank if opts else 0
        moves = [_Move(tensor, as_bytes=True) for tensor in tensors]
        return self._done(
            [
                lambda now, m=move: self.communicator.broadcast(m.array, root, async_op=not now)  # type: ignore[misc]
                for move in moves
            ],
            moves,
            tensors,
            _waits(opts),
        )

    def barrier(self, opts: Any = None) -> Any:
        """All ranks are here."""
        return self._done([lambda now: self.communicator.barrier(async_op=not now)], [], [], _waits(opts))

    def allgather(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Any:
        """Every rank's input into each list of outputs, by rank."""
        for into, tensor in zip(outputs, inputs, strict=True):
            if any(out.numel() != tensor.numel() for out in into):
                return self._gloo.allgather(outputs, inputs)
        wholes = [torch.empty((self.size(), *tensor.shape), dtype=tensor.dtype) for tensor in inputs]
        for whole, tensor in zip(wholes, inputs, strict=True):
            self.all_gather_single(whole, tensor).wait()
        for whole, into in zip(wholes, outputs, strict=True):
            for rank, out in enumerate(into):
                out.copy_(whole[rank].view(out.shape))
        return _work(list(outputs))

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        """Every rank's tensor into `output`, one after the other."""
        own, whole = _Move(tensor, as_bytes=True), _Move(output, as_bytes=True)
        call = lambda now: self.communicator.all_gather(own.array, whole.array, async_op=not now)  # noqa: E731
        return self._done([call], [whole], output, _waits(opts))

    _allgather_base = all_gather_single

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Several of these."""
        for output, tensor in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, tensor).wait()
        return _work(list(outputs))

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def reduce_scatter(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any = None
    ) -> Any:
        """Of each list of inputs, all ranks' number `rank` reduced into the output."""
        for output, parts in zip(outputs, inputs, strict=True):
            if any(part.numel() != output.numel() for part in parts):
                return self._gloo.reduce_scatter(outputs, inputs, opts)
            self.reduce_scatter_single(output, torch.stack([part.reshape(-1) for part in parts]), opts).wait()
        return _work(list(outputs))

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        """Of `tensor`, all ranks' part number `rank` reduced into `output`."""
        opts = opts or dist.ReduceScatterOptions()
        op = _op(opts, [tensor])
        if op is None:
            parts = list(tensor.reshape(-1).chunk(self.size()))
            return self._gloo.reduce_scatter([output.view(-1)], [parts], opts)
        whole, own = _Move(tensor), _Move(output)
        call = lambda now: self.communicator.reduce_scatter(whole.array, own.array, op, async_op=not now)  # noqa: E731
        return self._done([call], [own], output, _waits(opts))

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Several of these."""
        for output, tensor in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, tensor, opts).wait()
        return _work(list(outputs))

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    # --- by Gloo -----------------------------------------------------------------------------------------------------

    def reduce(self, *args: Any) -> Any:
        """To one rank."""
        return self._gloo.reduce(*args)

    def gather(self, *args: Any) -> Any:
        """At one rank."""
        return self._gloo.gather(*args)

    def scatter(self, *args: Any) -> Any:
        """From one rank."""
        return self._gloo.scatter(*args)

    def alltoall(self, *args: Any) -> Any:
        """From all to all."""
        return self._gloo.alltoall(*args)

    def all_to_all_single(self, *args: Any) -> Any:
        """From all to all."""
        return self._gloo.alltoall_base(*args)

    alltoall_base = all_to_all_single

    def send(self, *args: Any) -> Any:
        """To another rank."""
        return self._gloo.send(*args)

    def recv(self, *args: Any) -> Any:
        """From another rank."""
        return self._gloo.recv(*args)

    def recv_anysource(self, *args: Any) -> Any:
        """From whichever rank."""
        return self._gloo.recv_anysource(*args)

    def monitored_barrier(self, *args: Any) -> Any:
        """All ranks are here, or it is said which are not."""
        return self._gloo.monitored_barrier(*args)

    # --- what torch asks of a group ----------------------------------------------------------------------------------

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Of the backend."""
        return NAME

    def shutdown(self) -> None:
        """All ranks, together."""
        self.communicator.close()

    def abort(self) -> None:
        """This rank leaves, and all others fail."""
        self.communicator.abort("aborted")

    def _reduced(self, tensors: Sequence[torch.Tensor], opts: Any) -> Any:
        op = _op(opts, tensors)
        if op is None:
            return None
        moves = [_Move(tensor) for tensor in tensors]
        calls = [lambda now, m=move: self.communicator.all_reduce(m.array, op, async_op=not now) for move in moves]
        return self._done(calls, moves, list(tensors), _waits(opts))

    def _done(self, calls: Sequence[Callable[[bool], Any]], moves: Sequence[_Move], result: Any, waits: bool) -> Any:
        """The work of calls in a row; at once where the caller waits for it or something has to be copied back."""
        if waits or any(move.copied for move in moves) or not calls:
            for call in calls:
                call(True)
            for move in moves:
                move.back()
            return _work(result)
        last = [call(False) for call in calls][-1]
        future: torch.futures.Future[Any] = torch.futures.Future()

        def over(done: Any) -> None:
            error = done.exception()
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        last.future.add_done_callback(over)
        return _create_work_from_future(future)


class _Move:
    """A tensor as an array that the communicator takes: its own memory, or a copy where that is not on the host or has
    gaps.

    as_bytes : only moved, whatever its type
    """

    def __init__(self, tensor: torch.Tensor, as_bytes: bool = False) -> None:
        tensor = tensor.detach()
        if tensor.is_sparse:
            raise InputError("a sparse tensor", where=NAME, expected="dense tensors", hint="Use the backend gloo.")
        if tensor.is_conj() or tensor.is_neg():
            raise InputError("a conjugated view", where=NAME, hint="Give tensor.resolve_conj().resolve_neg().")
        self._tensor, host = tensor, tensor
        self.copied = tensor.device.type != "cpu" or not tensor.is_contiguous()
        if self.copied:
            host = tensor.to("cpu", memory_format=torch.contiguous_format, copy=True)
        self._host = host
        flat = host.view(-1)
        if as_bytes:
            flat = flat.view(torch.uint8)
        elif flat.dtype in _COMPLEX:
            flat = torch.view_as_real(flat).view(-1)
        self.array = flat

    def back(self) -> None:
        """Into the tensor, where it is a copy."""
        if self.copied:
            self._tensor.copy_(self._host)


def _op(opts: Any, tensors: Sequence[torch.Tensor]) -> str | None:
    """The operation's name; None: Gloo has to do it."""
    name = _OPS.get(opts.reduceOp.op if hasattr(opts.reduceOp, "op") else opts.reduceOp)
    whole = all(t.dtype in _TYPES or (t.dtype in _COMPLEX and name in ("sum", "avg")) for t in tensors)
    return name if whole and not any(t.is_sparse for t in tensors) else None


def _waits(opts: Any) -> bool:
    """Whether the caller waits for the work at once."""
    return opts is not None and not getattr(opts, "asyncOp", True)


def _work(result: Any) -> Any:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    return _create_work_from_future(future)


def create(said: Any, options: Options | None) -> OptccGroup:
    """For torch: the group of `said.group_size` ranks that find each other through `said.store`."""
    options = options or Options()
    transport = options.transport or os.environ.get("OPTCC_TRANSPORT", "local")
    given = options.cluster or os.environ.get("OPTCC_TOPOLOGY")
    rank, world, seconds = said.group_rank, said.group_size, said.timeout.total_seconds()
    cluster = None
    if given is not None:
        everybody = list(said.global_ranks_in_group) or list(range(world))
        whole = read_cluster(given, max(world, int(os.environ.get("WORLD_SIZE", world))))
        cluster = whole if len(whole.ranks) == world else _part(whole, everybody)
    # A store may outlive a group of the same name, which has left its addresses there, Gloo's too.
    key = f"optcc {(said.store.add('optcc ranks', 1) - 1) // world}"
    overseer = None
    if rank == 0 and world > 1:
        host, secret = _address(transport), secrets.token_hex(32)
        overseer = Overseer.open(Membership(0, world, (host, 0), "torch", secret), None, JOIN_S)
        said.store.set(key, f"{host} {overseer.address[1]} {secret}")
    place = Membership(0, 1, ("127.0.0.1", 0), "torch", "")
    if world > 1:
        host, port, secret = said.store.get(key).decode().split()
        place = Membership(rank, world, (host, int(port)), "torch", secret)
    gloo = dist.ProcessGroupGloo(dist.PrefixStore(f"{key} gloo", said.store), rank, world, said.timeout)
    communicator = Communicator.of(
        place, overseer, cluster, transport=transport, timeout_s=seconds, reproducible=options.reproducible
    )
    return OptccGroup(communicator, gloo)


def _part(cluster: Cluster, ranks: Sequence[int]) -> Cluster:
    if cluster.gpu_ranks:
        raise InputError("not with GPUs as ranks", where="new_group", expected="a cluster of servers as ranks")
    return replace(cluster, servers=tuple(cluster.servers[rank] for rank in ranks), pristine=None)


def _address(transport: str) -> str:
    """This machine's address on the way to rank 0's of the job."""
    if transport == "local":
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((os.environ.get("MASTER_ADDR", "127.0.0.1"), 1))  # sends nothing
        return str(sock.getsockname()[0])


def register_backend() -> None:
    """Make "optcc" known to torch.distributed; once."""
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", "cuda"])


def communicator_of(group: Any = None) -> Communicator:
    """The communicator of a process group of this backend, or of the default one, for its `events` and `strike`.

    Raises InputError for a group of another backend.
    """
    group = group or dist.group.WORLD
    if not isinstance(group, OptccGroup):
        raise InputError("not a group of the backend optcc", where="group", got=type(group).__name__)
    return group.communicator
