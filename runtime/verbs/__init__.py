"""Wires over RDMA verbs: queue pairs by libibverbs. Importing `optcc.runtime.verbs.wires` needs it; this does not.

Imported by: cli, runtime.compiled, runtime.control.
Imports: fabric, machine, runtime.devices, runtime.engine, runtime.errors, runtime.wires.
"""
