"""A standing hunt: mutated models, data sets, pictures, command lines and calls, each in a process of its own.

`make fuzz` runs it. `cases.py` makes an input from a seed and a number, `child.py` runs it, `checks.py` looks at what
it did. Nothing here is needed from outside: `seeds.py` makes the good files that the others spoil.
"""
