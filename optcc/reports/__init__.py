"""What commands print for people: tables, pictures, the doctor's findings.

Imported by: cli, diagnose, serve.
Imports: discover, fault_run, files, plans, schedule, simulation, values.
"""
