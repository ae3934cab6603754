"""What a run proves: inputs that show every mistake, probes between NICs, and what these say is at fault.

Imported by: fault_run, runtime.control, runtime.measuring.
Imports: runtime.devices, runtime.messages, schedule.
"""
