"""Kills commands and their processes at seeded moments, and checks what is left. `make chaos` runs it."""
