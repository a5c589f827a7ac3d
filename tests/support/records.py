"""Comparing sets of records."""

from dataclasses import fields

import numpy as np

from boxwright.data.records import Records


def differences(one: Records, other: Records) -> list[str]:
    """Return the names of the fields that differ between two sets."""
    return [f.name for f in fields(one) if not np.array_equal(getattr(one, f.name), getattr(other, f.name))]
