"""Plans on standby: decided before a NIC fails, made within milliseconds when it does (docs/planning-at-failure.md)."""
