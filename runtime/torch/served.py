"""Which models the hook serves: those whose gradients DDP brings to it in buckets, with nothing else on them.

What torch does not tell in public is asked of its private names here, and nowhere else.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from optcc.errors import InputError


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
    ranks = dist.get_process_group_ranks(group)
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
