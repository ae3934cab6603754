"""The communication hook for DistributedDataParallel: the native AllReduce, or a plan where links are unequal.

One `HookState` per model. All ranks make it and use it alike: what it decides is a function of what all have gathered.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from optcc.errors import InputError, OptccError, some
from optcc.runtime.errors import PeerLostError, RankFailedError, TransportError
from optcc.runtime.torch.book import GLOO, NCCL, Book, Planner, load
from optcc.runtime.torch.meeting import GRACE_S, Court, Meeting
from optcc.runtime.torch.policy import Levels, Policy, Switch, cluster_of, full_rate, settings_of
from optcc.runtime.torch.probe import probe
from optcc.runtime.torch.walk import Walk, by_stream, done_with, first_line, stream_of
from optcc.schedule.recipe import Costs
from optcc.values.cluster import Cluster
from optcc.values.units import format_size

# Process groups beside the model's: one more like it, and the end of one's connections.


def groups_here() -> int:
    """How many process groups this rank is in."""
    return len(dist.distributed_c10d._world.pg_names)


def group_like(group: dist.ProcessGroup, most: int, **options: Any) -> dist.ProcessGroup:
    """Another group of the ranks of `group`, of which the ranks outside know nothing.

    torch derives its name from how many groups a rank is in, and ranks with different names wait for each other in
    vain. So a rank in fewer than `most` makes up for it with groups of its own.
    """
    backend = dist.get_backend(group)
    for _ in range(most - groups_here()):
        dist.new_group([dist.get_rank()], backend=backend, use_local_synchronization=True)
    ranks = dist.get_process_group_ranks(group)
    made: dist.ProcessGroup = dist.new_group(ranks, backend=backend, use_local_synchronization=True, **options)
    return made


def all_are_here(group: dist.ProcessGroup, device: torch.device) -> None:
    """Returns when all ranks have called it."""
    dist.all_reduce(here := torch.zeros(1, device=device), group=group)
    here.item()


def hang_up(group: dist.ProcessGroup) -> None:
    """Close this rank's connections, so that peers that wait for it fail now and not when their time is up.

    Gloo has no call for that, but a wait whose time is up closes all connections of its group. With a peer whose
    connection is closed already there is no wait, so all are tried.
    """
    if "gloo" not in dist.get_backend_config(group):
        return
    for peer in dist.get_process_group_ranks(group):
        if peer != dist.get_rank():
            with suppress(RuntimeError):
                dist.irecv(torch.empty(1), peer, group, 2**30 - 1).wait(timedelta(milliseconds=1))


# Which models the hook serves: those whose gradients DDP brings to it in buckets, with nothing else on them.
#
# What torch does not tell in public is asked of its private names here, and nowhere else.


def unwrapped(model: Any) -> Any:
    """The module that ``torch.compile`` was given, or `model` itself."""
    return getattr(model, "_orig_mod", model)


def check_served(model: Any, group: dist.ProcessGroup | None = None) -> None:
    """Raise InputError unless the hook can reduce what DDP reduces for `model`, over `group` (None: the model's)."""
    if not isinstance(model, DistributedDataParallel):
        raise InputError(
            "only DistributedDataParallel is served",
            where="model",
            expected="a torch.nn.parallel.DistributedDataParallel",
            got=f"{type(model).__module__}.{type(model).__qualname__}",
            hint="Wrap the module in DistributedDataParallel and register that; FSDP, fully_shard, DataParallel "
            "and other wrappers do their own communication, so leave the call out for them",
        )
    for what, hint in _obstacles(model):
        raise InputError(what, where="model", expected="a DistributedDataParallel that takes a hook", hint=hint)
    if group is not None and group is not model.process_group:
        raise InputError(
            "another process group than the model's",
            where="group",
            expected=f"the one of ranks {_ranks(model.process_group)}, in which DistributedDataParallel was made",
            got=f"one of ranks {_ranks(group)}",
            hint="Leave group out, or make the model with process_group=group",
        )
    ranks = dist.get_process_group_ranks(model.process_group)
    if ranks != sorted(ranks):
        raise InputError(
            "ranks out of order", where="the model's process group", expected="ascending ranks", got=str(ranks)
        )


def _obstacles(model: DistributedDataParallel) -> list[tuple[str, str]]:
    """What keeps a hook from a model's gradients, and the way out of each."""
    found = []
    if getattr(model, "_delay_all_reduce_all_params", False):
        found.append(
            (
                "all its parameters are in delay_all_reduce_named_params, and no hook ever sees those",
                "Leave delay_all_reduce_named_params out",
            )
        )
        return found  # such a model has nothing of what is asked below
    if model.mixed_precision is not None:
        found.append(
            (
                "mixed_precision has a hook of its own, and DDP takes one",
                "Leave mixed_precision out and use torch.autocast",
            )
        )
    if getattr(model, "_use_python_reducer", False):
        found.append(
            (
                "the python reducer gives a hook no buckets",
                "Set torch._dynamo.config.optimize_ddp to 'ddp_optimizer' before the model is made",
            )
        )
    if getattr(model, "_comm_hooks", []) or model._get_ddp_logging_data().get("comm_hook"):
        found.append(
            (
                "it has a communication hook already, and DDP takes one",
                "Register once, before any other hook; for another state make the DistributedDataParallel anew",
            )
        )
    if any(hasattr(parameter, "_in_backward_optimizers") for parameter in model.parameters()):
        found.append(
            (
                "its optimizer runs inside the backward, by a hook of its own, and DDP takes one",
                "Leave out _apply_optimizer_in_backward, and call the optimizer's step after the backward",
            )
        )
    return found


def divides_by_active(model: DistributedDataParallel) -> bool:
    """Whether DDP divides by the ranks that still have inputs: in `join` with divide_by_initial_world_size=False.

    Under `Join` with several joinables only the first counts ranks; DDP in a later place divides by all, as here.
    """
    join = model._join_config
    return join.enable and join.is_first_joinable and not model._divide_by_initial_world_size


def _ranks(group: Any) -> str:
    if not isinstance(group, dist.ProcessGroup):
        return "that this rank is not in"  # dist.GroupMember.NON_GROUP_MEMBER
    return some(dist.get_process_group_ranks(group))


# The hook

OUTSIDE = -1
"""What torch says for the running backward where there is none."""

Rate = Callable[[dist.ProcessGroup, torch.device], float]
"""This rank's rate in bytes per second. Called by all ranks of the group in the same step; may be collective."""


class HookState:
    """What `allreduce_hook` needs for one model. Made by all ranks of the model's process group together.

    Parameters
    ----------
    model : a DistributedDataParallel, or what ``torch.compile`` made of one
    planner : makes plans, on rank 0
    rates : known ones: a cluster, rank r of which is rank r of the model's group, or bytes per second by rank;
        None: `rate` tells them
    group : the model's process group, or None for the same; another one is refused
    rate : this rank's rate, asked every `policy.every` steps; by default it is measured (`probe`)
    timeout_s : seconds, bounds every wait for a peer, for its call and on a plan's way (the native way keeps the
        model's group's own bound)
    costs : of messages; by default those of Gloo for buckets in host memory, of NCCL for those on a GPU

    Raises InputError before anything is made: where the model is not served, the ranks were given different things,
    or one does not come in time. The other ranks raise it, too.
    """

    def __init__(
        self,
        model: Any,
        planner: Planner,
        *,
        rates: Cluster | Sequence[float] | None = None,
        group: dist.ProcessGroup | None = None,
        rate: Rate = probe,
        policy: Policy | None = None,
        timeout_s: float = 600.0,
        costs: Costs | None = None,
    ) -> None:
        model = unwrapped(model)
        if not dist.is_initialized():
            check_served(model)
            raise InputError("no process group", where="model", expected="init_process_group called before")
        self.native: dist.ProcessGroup = getattr(model, "process_group", None) or dist.group.WORLD
        meeting = Meeting(self.native)
        world = dist.get_world_size(self.native)
        try:
            check_served(model, group)
            settings = settings_of(world, rates, policy, timeout_s, costs)
        except InputError as error:
            meeting.refuse(error)
        most = meeting.agree(repr(settings), groups_here(), timeout_s)
        if dist.get_rank(self.native) == 0:
            load(planner)
        # Here the others wait for that as long as the model's group allows: `timeout_s` may be shorter than it takes.
        all_are_here(self.native, model.device)
        # Our messages never meet those of others, and our bound is our own.
        self._group = group_like(self.native, most, timeout=timedelta(seconds=timeout_s))
        # A rank that fails closes its connections, and another one may still be making them.
        all_are_here(self.native, model.device)
        store = dist.distributed_c10d._get_default_store()
        self._court = Court(store, self._group.group_name, dist.get_rank(self.native), world, min(GRACE_S, timeout_s))
        self._model = weakref.ref(model)  # the model holds the state
        self._parameters = frozenset(map(id, model.parameters()))
        self.policy, self._cluster, self._costs = settings.policy, settings.cluster, settings.costs
        self._planner, self._rate = planner, rate
        self._switch = Switch(self.policy)
        self._book: Book | None = None
        self._worker = ThreadPoolExecutor(1, "optcc")
        self._closed = False
        self._pending: list[tuple[torch.futures.Future[Any], bool]] = []
        self._last: int | None = None
        """Index of the last bucket that came; None: none has."""
        self._backward = OUTSIDE
        """The backward whose end is watched."""
        self._divisor = world
        self._on: torch.device | None = None
        """The GPU on which buckets of this step went by plan."""
        self._failure: RankFailedError | InputError | None = None
        self.steps = 0
        """Steps whose gradients were reduced or are being."""
        self.rates: tuple[float, ...] = ()
        """Bytes per second by rank, as last agreed on; empty before, and with a given cluster."""
        self.by_plan = 0
        """Buckets that went by a plan so far; the others went natively."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __deepcopy__(self, _: object) -> Self:
        """Itself: torch copies a model without its hook, and the copy goes natively."""
        return self

    @property
    def levels(self) -> Levels | None:
        """Rates of which the plan in force is made, in parts of the fastest; None: native, or a given cluster."""
        return self._switch.current

    @property
    def book(self) -> Book | None:
        """The plans in force; None: native."""
        return self._book

    def describe(self) -> str:
        """For people: what is in force."""
        planned = [nbytes for nbytes, plan in self._book.plans.items() if plan] if self._book is not None else []
        if not planned and self._book is not None and self._book.plans:
            sizes = ", ".join(map(format_size, self._book.plans))
            return f"native: no plan is {self.policy.gain:g} times as fast as a ring for buckets of {sizes}"
        if not planned:
            return "native"
        return f"by plan: buckets of {', '.join(map(format_size, planned))}"

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The hook: average the bucket over all ranks. Raises RankFailedError, here or at the end of the backward.

        Under `join`, DDP calls it outside a backward too, with zeros, on ranks whose inputs have ended. What these do
        is the same as on the others, in the same order.
        """
        if self._failure is not None:
            raise self._failure
        buffer, backward = bucket.buffer(), torch._C._current_graph_task_id()
        try:
            if self._last is None or bucket.index() <= self._last:
                self._begin(bucket, backward != OUTSIDE)
            self._last = bucket.index()
            if backward not in (OUTSIDE, self._backward):
                # Runs at the end of this backward and before DDP's own, which would make any error a RuntimeError.
                torch.autograd.Variable._execution_engine.queue_callback(self._finish)
            self._backward = backward
            future = self._averaged(buffer)
        except InputError:
            raise  # which all ranks have agreed on
        except Exception as error:  # of this rank alone: the others must not wait for it
            raise self._fail(error) from error
        if backward == OUTSIDE and bucket.is_last():
            self._finish()
        return future

    def close(self) -> None:
        """End the worker thread. From then on the model's gradients go natively. More than once does no harm.

        The process group, which is torch's, goes with torch's own end.
        """
        self._closed = True
        self._worker.shutdown(wait=True)
        self._book = None

    def _begin(self, bucket: dist.GradBucket, active: bool) -> None:
        """A step, on a rank that has inputs or under `join` on one that has none: now and then rates are agreed on."""
        model, device = self._model(), bucket.buffer().device
        if (
            model is None
            or model.process_group is not self.native
            or id(bucket.parameters()[0]) not in self._parameters
        ):
            raise InputError(
                "not the model, or no longer the process group, that the hook's state was made for",
                where="allreduce_hook",
                hint="Make a state for each model, after its process group is final",
            )
        self._on = None
        self._divisor = dist.get_world_size(self.native)
        if divides_by_active(model):
            count = torch.tensor([int(active)], device=device)
            dist.all_reduce(count, group=self._group)
            self._divisor = int(count.item())
        alone = dist.get_world_size(self._group) == 1
        if not self._closed and not alone and self._cluster is not None:
            if self._book is None:
                self._book = self._new_book(self._cluster, device)
        elif not self._closed and not alone and self.steps % self.policy.every == 0:
            self._agree(device)
        self.steps += 1

    def _averaged(self, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Start to average `buffer`, dense or sparse, in place, by plan or natively."""
        dense = buffer.layout == torch.strided
        # Before the sum: a half overflows late. And as DDP does, to the last bit: it multiplies what is dense.
        if dense:
            buffer.mul_(1.0 / self._divisor)
        else:
            buffer.div_(self._divisor)
        walk = self._book.walk(buffer) if self._book is not None and dense and buffer.numel() else None
        if walk is None:
            future = dist.all_reduce(buffer, group=self.native, async_op=True).get_future()
            self._pending.append((future, True))
            # Of complex numbers, torch's result is a view in real ones.
            return future.then(lambda done: done.value()[0] if not dense else done_with(done, buffer))
        self.by_plan += 1
        if buffer.device.type == "cpu":
            future = self._by_cpu(walk, buffer)
        else:
            self._on = buffer.device
            future = by_stream(walk, buffer)
        self._pending.append((future, False))
        return future

    def _agree(self, device: torch.device) -> None:
        """Gather everyone's rate; a change of plan happens here, in the same step on all ranks."""
        try:
            rate = self._rate(self._group, device)
        except InputError as error:  # of this rank alone
            raise TransportError(str(error)) from error
        mine = torch.tensor([rate], dtype=torch.float64, device=device)
        all_of_them = [torch.empty_like(mine) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(all_of_them, mine, self._group)
        self.rates = tuple(rate.item() for rate in all_of_them)
        if self._switch.update(self.rates):
            levels = self._switch.current
            cluster = None if levels is None else cluster_of(levels, full_rate(self.rates), self.policy.quanta)
            self._book = None if cluster is None else self._new_book(cluster, device)

    def _new_book(self, cluster: Cluster, device: torch.device) -> Book:
        costs = self._costs if self._costs is not None else GLOO if device.type == "cpu" else NCCL
        return Book(self._group, cluster, self._planner, costs, self.policy.gain)

    def _by_cpu(self, walk: Walk, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """On the worker, in the order in which buckets come, which is the same on all ranks."""
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()

        def work() -> None:
            try:
                if self._failure is not None:
                    raise self._failure
                walk.run(buffer)
            except Exception as error:  # whatever it is, a bucket without a result would hang the backward
                try:
                    self._fail(error)
                finally:
                    future.set_exception(self._failure or error)
            else:
                future.set_result(buffer)

        self._worker.submit(work)
        return future

    def _finish(self) -> None:
        """At the end of the backward: wait for all buckets, and raise what any of them met."""
        self._backward = OUTSIDE
        pending, self._pending = self._pending, []
        for future, native in pending:
            try:
                future.wait()
            except Exception as error:  # on a plan's way it has been noted
                if native:
                    self._fail(error, self.native)
        if self._on is not None and self._failure is None:
            # NCCL's watchdog, which bounds a wait, does not see what a recording exchanges. It sees this, behind it.
            with torch.cuda.stream(stream_of(self._on)):
                dist.all_reduce(torch.zeros(1, device=self._on), group=self._group, async_op=True)
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: Exception, where: dist.ProcessGroup | None = None) -> RankFailedError | InputError:
        """Note the failure, on our group or another, so that nothing goes on; returns what all ranks raise for it."""
        if self._failure is None:
            if isinstance(error, InputError):
                self._failure = error
            else:
                known = error if isinstance(error, OptccError) else TransportError(first_line(error))
                self._failure = RankFailedError(self._court.rank, str(known))  # stands if judging fails
                own = not isinstance(error, (RuntimeError, PeerLostError))  # a RuntimeError is how torch tells of peers
                self._failure = self._court.judge(known, lambda: hang_up(where or self._group), own=own)
        return self._failure
