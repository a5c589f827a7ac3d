"""Settings of every test, and the examples of README and docs as tests; `tests/support/examples.py` runs them."""

import os
import signal
from collections.abc import Iterator

import pytest
from support.examples import collect_examples, example_folder, run_in_example_folder

pytest_collect_file = collect_examples


@pytest.fixture(autouse=True, scope="session")
def _data_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the record of what was made here out of the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data_home")))
        yield


@pytest.hookimpl(tryfirst=True)  # before the groups are dealt out to test processes
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the examples of a page in one process: the later ones use the names of the earlier ones."""
    for item in items:
        if item.path.suffix == ".md":
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


__all__ = ["example_folder", "run_in_example_folder"]

# A test that hangs fails with the stacks of all threads. Here and not in pyproject.toml, where pytest would reject the
# setting in an environment without pytest-timeout.
os.environ.setdefault("PYTEST_TIMEOUT", "300")

# `nohup make test &` and some CI runners ignore Ctrl-C. Programs that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
