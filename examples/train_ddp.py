"""DDP with optcc's hook. On one machine, over Gloo: torchrun --nproc-per-node 4 examples/train_ddp.py

With --rates the links are taken to be so quick (bytes per second, one for each rank); without, the hook measures them.
Several machines, or GPUs: the same script, started as usual; see docs/pytorch.md.
"""

import argparse
import os

try:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
except ImportError as error:
    raise SystemExit(f"{error}: this example needs PyTorch, see https://pytorch.org/get-started/") from None

import optcc.pytorch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", type=float, nargs="+", help="bytes per second of each rank's link")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()

    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1)).to(device)
    model = DistributedDataParallel(net)
    state = optcc.pytorch.register(model, options.rates, policy=optcc.pytorch.Policy(every=10))

    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data = torch.Generator().manual_seed(dist.get_rank())
    for step in range(options.steps):
        batch = torch.randn(32, 512, generator=data).to(device)
        loss = (model(batch) - batch.mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 4:
            print(f"step {step + 1}: loss {loss.item():.4f}, {state.describe()}", flush=True)
    state.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
