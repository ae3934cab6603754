"""Processes of a job: how they find and trust each other, open wires, take commands, and learn who has failed.

Imported by: cli, communicator, fault_run, runtime.measuring, torch_backend.
Imports: fabric, machine, runtime.codec, runtime.compiled, runtime.devices, runtime.engine, runtime.errors,
    runtime.evidence, runtime.flows, runtime.forks, runtime.messages, runtime.native, runtime.verbs, runtime.wires,
    schedule.
"""
