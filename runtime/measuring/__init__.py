"""Rates and latencies of a machine by real transfers, and a run of all ranks in virtual time.

Imported by: cli.
Imports: runtime.control, runtime.devices, runtime.engine, runtime.evidence, runtime.flows, runtime.messages,
    runtime.wires, schedule.
"""
