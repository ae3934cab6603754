"""Sweeps: grids of topologies x failures x sizes, as rows of one table.

`grid` reads what to do, `failures` makes the sets of failed NICs, `cells` are the rows and what each needs computed,
`journal` keeps what is done, `table` writes the result, `distribution` sums up Monte Carlo draws; all of it pure.
`execute` computes, on local cores or a Dask cluster, and is the only part that sees the planner.

Imported by: cli.
Imports: api, discover, files, machine, planner, plans, schedule, simulation, values.
"""
