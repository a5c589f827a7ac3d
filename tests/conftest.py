"""Settings for every test."""

from hypothesis import settings

pytest_plugins = ("support.fixtures", "support.clusters")

# Machines are shared and noisy: how long one example takes says nothing.
settings.register_profile("boxwright", deadline=None)
settings.load_profile("boxwright")
