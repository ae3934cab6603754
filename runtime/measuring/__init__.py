"""Rates and latencies of a machine by real transfers, and a run of all ranks in virtual time.

Imported by: cli.
Imports: runtime.control, runtime.evidence, runtime.messages, schedule.
"""
