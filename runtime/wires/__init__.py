"""What carries chunks: the contract, and wires in virtual time, between processes, and between GPUs.

Imported by: communicator, fault_run, runtime.compiled, runtime.control, runtime.flows, runtime.measuring,
    runtime.native, runtime.protocol, runtime.verbs.
Imports: runtime.devices, runtime.engine, runtime.errors, runtime.forks, schedule.
"""
