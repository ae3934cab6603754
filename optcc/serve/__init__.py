"""The planner as a local service, for collective libraries that are not in Python (docs/planning-at-failure.md)."""
