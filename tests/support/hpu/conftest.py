"""The plugin belongs to processes with a simulated device; pytest's own must not import it."""

collect_ignore = ["plugin"]
