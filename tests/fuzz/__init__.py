"""The fuzzer: mutated models, data sets, pictures, command lines and calls, each in its own process.

`make fuzz` runs it. `cases.py` makes an input from a seed and a number, `child.py` runs it, `checks.py` checks the
result. It needs no other files: `seeds.py` makes the valid ones that the other modules mutate.
"""
