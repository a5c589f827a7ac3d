"""Stops a run whose loss is NaN or infinite."""

from collections.abc import Sequence
from math import isfinite
from pathlib import Path

import torch
from torch import Tensor

from boxwright.core.errors import BoxwrightError
from boxwright.data.records import Records


class NanGuard:
    """Stops a run whose loss is NaN or infinite, and names the step and its images.

    It reads the losses only now and then, so that no step waits for a device.
    """

    def __init__(self, records: Records, folder: Path, lr_per_image: float) -> None:
        self._records, self._folder, self._lr_per_image = records, folder, lr_per_image
        self._recent: list[tuple[int, Tensor, Sequence[int]]] = []

    def add(self, step: int, total: Tensor, image_ids: Sequence[int]) -> None:
        """Collect a step's loss and its images."""
        self._recent.append((step, total.detach(), image_ids))

    def check(self) -> None:
        """Read all losses since the last check at once.

        Raises:
            BoxwrightError: one is not finite. The last checkpoint was written before it.
        """
        recent, self._recent = self._recent, []
        if not recent:
            return
        values = torch.stack([total for _, total, _ in recent]).tolist()
        for (step, _, image_ids), value in zip(recent, values, strict=True):
            if not isfinite(value):
                wanted = set(image_ids)
                found = [i for i, d in enumerate(self._records.image_ids.tolist()) if d in wanted]
                names = ", ".join(self._records.relative_path(i) for i in found[:8])
                raise BoxwrightError(
                    f"The loss of step {step} is {value}. Its images: {names}. The last "
                    f"good checkpoint is in {str(self._folder)!r}. Lower lr_per_image, now {self._lr_per_image:g}, or "
                    "set clip_norm=35."
                )
