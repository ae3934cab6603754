"""One rank's loop: what has landed is folded, what has become ready is sent. And its twin in one process.

Imported by: communicator, runtime.compiled, runtime.control, runtime.flows, runtime.measuring, runtime.torch,
    runtime.verbs, runtime.wires.
Imports: runtime.devices, runtime.errors, schedule.
"""
