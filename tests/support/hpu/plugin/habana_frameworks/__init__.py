"""A made-up Gaudi plugin over the simulated device: the modules and names of the real one that Boxwright uses."""
