"""RDMA NICs that are played: a libibverbs of our own, whose bytes go through shared memory, at rates and with faults.

Imported by: cli, runtime.control.
Imports: machine, values.
"""
