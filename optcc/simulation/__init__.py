"""What a schedule does: its time in the model, faults, who used what when, and whether it is an AllReduce.

Imported by: api, cli, discover, export, fault_run, planner, reports, runtime.torch, serve, study, theory.
Imports: files, machine, schedule, values.
"""
