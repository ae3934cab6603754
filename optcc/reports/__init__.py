"""What commands print for people: tables, pictures, the doctor's findings.

Imported by: cli, diagnose, serve.
Imports: fault_run, plans, simulation, theory, values.
"""
