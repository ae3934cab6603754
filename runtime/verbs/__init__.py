"""Wires over RDMA verbs: queue pairs by pyverbs. Importing `optcc.runtime.verbs.wires` needs pyverbs; this does not.

Imported by: cli, runtime.control.
Imports: machine, runtime.devices, runtime.engine, runtime.errors, runtime.wires.
"""
