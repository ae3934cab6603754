"""Sums that survive a NIC: torchrun --nproc-per-node 4 examples/survive.py"""

import numpy as np

import optcc

with optcc.Communicator("uniform:servers=4,nics=2,rate=100Gb/s") as comm:
    gradients = np.full(1 << 20, comm.rank + 1.0, np.float32)
    comm.all_reduce(gradients, op="avg")  # in place
    assert (gradients == 2.5).all()

    comm.strike("cut", "server1/nic0")  # a fault run: this NIC's link goes down in the middle of the next call
    total = np.empty_like(gradients)
    comm.all_reduce(gradients, out=total)
    assert (total == 10).all()

    handle = comm.all_reduce(gradients, op="max", async_op=True)
    handle.wait()
    comm.barrier()
    seen = sorted({event.kind for event in comm.events()})
    print(f"rank {comm.rank} of {comm.world}: exact; {', '.join(seen)}")
