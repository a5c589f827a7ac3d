"""The losses of the last steps: looked at now and then, so that no step waits for a device."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from boxwright.core.errors import BoxwrightError
from boxwright.data.records import Records


class RecentLosses:
    """Remembers the steps since the last look, to name the one whose loss was no number."""

    def __init__(self, records: Records, folder: Path, lr_per_image: float) -> None:
        self._records, self._folder, self._lr_per_image = records, folder, lr_per_image
        self._recent: list[tuple[int, Tensor, list[int]]] = []

    def add(self, step: int, total: Tensor, image_ids: Sequence[int]) -> None:
        """Remember a step's loss and its images."""
        self._recent.append((step, total.detach(), list(image_ids)))

    def check(self) -> None:
        """Name the first step since the last look whose loss is not a number; one host read for all of them.

        Raises:
            BoxwrightError: there is one. The last checkpoint was written before it.
        """
        recent, self._recent = self._recent, []
        if not recent:
            return
        values = torch.stack([total for _, total, _ in recent]).tolist()
        for (step, _, image_ids), value in zip(recent, values, strict=True):
            if not np.isfinite(value):
                names = ", ".join(self._names(image_ids)[:8])
                raise BoxwrightError(
                    f"The loss of step {step} is {value}. Its images: {names}. The last "
                    f"good checkpoint is in {str(self._folder)!r}. Lower lr_per_image, now {self._lr_per_image:g}, or "
                    "set clip_norm=35."
                )

    def _names(self, image_ids: Sequence[int]) -> list[str]:
        ids = set(image_ids)
        return [self._records.relative_path(i) for i, d in enumerate(self._records.image_ids.tolist()) if d in ids]
