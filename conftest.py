"""Collects the examples of README and docs as tests; `tests/support/examples.py` runs them."""

from support.examples import collect_examples, example_folder, run_in_example_folder

pytest_collect_file = collect_examples
__all__ = ["example_folder", "run_in_example_folder"]
