"""A training script as users write it, of torch alone, DDP or FSDP2: nccl_training.py ddp|fsdp STEPS FOLDER.

Nothing in it knows what NCCL goes by. Each rank leaves a digest of its parameters, before and after, in FOLDER.
"""

import hashlib
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

WIDTH, BLOCKS, BATCH = 1024, 3, 64


def digest(model: nn.Module) -> str:
    """Of this rank's parameters, or its parts of them."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        own = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        found.update(own.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def main(kind: str, steps: int, folder: Path) -> None:
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("nccl")
    torch.manual_seed(1)
    blocks = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)) for _ in range(BLOCKS))
    model = nn.Sequential(*blocks).cuda()
    trained: nn.Module
    if kind == "ddp":
        trained = DistributedDataParallel(model)
    else:
        for block in model:
            fully_shard(block)
        trained = fully_shard(model)
    before = digest(model)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3)
    draw = torch.Generator("cuda").manual_seed(rank)
    for step in range(steps):
        inputs = torch.randn(BATCH, WIDTH, device="cuda", generator=draw)
        loss = nn.functional.mse_loss(trained(inputs), inputs.roll(1, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
    (folder / f"digest-{rank}").write_text(f"{before} {digest(model)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
