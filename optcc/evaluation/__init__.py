"""The evaluation that `optcc reproduce` makes: every scheme on every failure in one simulator, as one page."""
