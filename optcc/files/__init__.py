"""Reading with bounds and without waits; writing whole files or none; journals; the files that come with optcc.

Imported by: cli, diagnose, discover, export, machine, plans, simulation, study.
Imports: nothing.
"""
