"""Processes of a job: how they find and trust each other, open wires, take commands, and learn who has failed.

Imported by: cli, communicator, fault_run, runtime.measuring, torch_backend.
Imports: fabric, machine, runtime.codec, runtime.devices, runtime.errors, runtime.evidence, runtime.forks,
    runtime.messages, runtime.native, schedule.
"""
