"""One rank's wires and collectives by the native engine: its library, and links over it.

Imported by: communicator, fault_run, runtime.control.
Imports: machine, runtime.devices, runtime.errors, runtime.forks, runtime.messages, schedule.
"""
