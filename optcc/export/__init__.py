"""Plans in the formats of other executors, simulators and viewers: each with its reader and interpreter.

`chunks` turns a plan into whole numbers of equal chunks; `mscclpp`, `chakra`, `goal` and `perfetto` write. What is read
back is executed by the rules of the target (`mscclpp_run`, `sends`), which know nothing of our schedule.

Imported by: cli.
Imports: files, machine, planner, plans, schedule, simulation, theory, values.
"""
