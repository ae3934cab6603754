"""Transfers as chunks on flows, and flows moved off wires and NICs that are lost, suspected or slow.

Imported by: fault_run, runtime.compiled, runtime.control, runtime.measuring.
Imports: runtime.engine, runtime.errors, runtime.messages, runtime.protocol, runtime.wires, schedule.
"""
