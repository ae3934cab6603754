"""A NIC lost on purpose in a run of real bytes: what that costs, and what the next plan makes of the rest.

Imported by: cli, reports.
Imports: api, plans, runtime.control, runtime.evidence, runtime.native, simulation, values.
"""
