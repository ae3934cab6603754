"""Training that loses a NIC, then a rank, and ends with the right weights.

    torchrun --nproc-per-node 4 examples/survive_ddp.py

Both are lost on purpose: a link of the second server in the middle of a step, and later the last rank's process. The
others go on as three. In the end the weights are compared with those of a process that computes all ranks' part alone.
"""

import argparse
import json
import os
import time
from pathlib import Path

try:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
except ImportError as error:
    raise SystemExit(f"{error}: this example needs PyTorch, see https://pytorch.org/get-started/") from None

import optcc.pytorch

BATCH = 16


def network(width: int) -> torch.nn.Module:
    """The same on all ranks."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))


def loss_of(model: torch.nn.Module, step: int, share: int) -> torch.Tensor:
    """Of the batch that the rank with this number at the start has in this step."""
    draw = torch.Generator().manual_seed(1000 * step + share)
    batch = torch.randn(BATCH, 64, generator=draw)
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()


def descent_of(net: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9)


def go_on(net: torch.nn.Module, descent: torch.optim.Optimizer, step: int) -> int:
    """After a rank is lost: all that are left take weights and step of the one that has come furthest."""
    optcc.pytorch.shrink()
    steps: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(steps, step)
    furthest = steps.index(max(steps))
    state = [net.state_dict(), descent.state_dict()]
    dist.broadcast_object_list(state, src=furthest)
    net.load_state_dict(state[0])
    descent.load_state_dict(state[1])
    return steps[furthest]


def alone(width: int, shares: list[list[int]]) -> torch.nn.Module:
    """What one process computes: in each step, the mean of the gradients of these ranks."""
    net = network(width)
    descent = descent_of(net)
    for step, of in enumerate(shares):
        descent.zero_grad()
        for share in of:
            (loss_of(net, step, share) / len(of)).backward()
        descent.step()
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", help="topology; without it two NICs for each rank")
    parser.add_argument("--transport", default="local")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--width", type=int, default=4096, help="of the hidden layer; 264 bytes of gradients for each")
    parser.add_argument("--compute", type=float, default=0.0, help="seconds that a step computes at least")
    parser.add_argument("--record", type=Path, help="when each step ended, as JSON")
    options = parser.parse_args()
    nic_at, rank_at = options.steps // 3, 2 * options.steps // 3

    cluster = options.cluster or f"uniform:servers={os.environ['WORLD_SIZE']},nics=2,rate=100Gb/s"
    dist.init_process_group("optcc", pg_options=optcc.pytorch.Options(cluster=cluster, transport=options.transport))
    share, last = dist.get_rank(), dist.get_world_size() - 1
    second = optcc.pytorch.communicator_of().cluster.servers[1]
    net = network(options.width)
    descent = descent_of(net)
    model = DistributedDataParallel(net)
    step, shares, ended, struck = 0, [], [], 0.0
    start = time.monotonic()
    while step < options.steps:
        if step == nic_at:
            struck = time.monotonic() - start
            optcc.pytorch.communicator_of().strike("cut", f"{second.name}/{second.nics[0].name}", 0.5)
        if step == rank_at and share == last:
            os._exit(0)  # torchrun would stop the others, too, for any other status
        try:
            time.sleep(options.compute)
            descent.zero_grad()
            loss_of(model, step, share).backward()
        except RuntimeError as error:  # a RankFailedError, as DDP raises it
            print(f"rank {share} goes on without another: {str(error).splitlines()[0]}", flush=True)
            step = go_on(net, descent, step)
            model = DistributedDataParallel(net)
            continue
        descent.step()
        step += 1
        shares.append(list(range(dist.get_world_size())))  # the last one is lost, so the others keep their numbers
        ended.append((time.monotonic() - start, dist.get_world_size()))

    expected = alone(options.width, shares)
    pairs = list(zip(net.parameters(), expected.parameters(), strict=True))
    apart = max(float((a - b).detach().abs().max() / b.detach().abs().max()) for a, b in pairs)
    assert apart < 1e-5, f"rank {share}: weights differ by {apart:.1e}"
    print(f"rank {share}: {step} steps, the right weights (to {apart:.0e})", flush=True)
    if options.record and share == 0:
        options.record.write_text(json.dumps({"batch": BATCH, "ended": ended, "struck": struck}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
