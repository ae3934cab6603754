"""What happens per chunk while nothing fails, compiled: engine, flows, protocol's steady state and wires in one.

Imported by: cli, communicator, runtime.control, torch_backend.
Imports: machine, runtime.devices, runtime.engine, runtime.errors, runtime.flows, runtime.verbs, runtime.wires.
"""
