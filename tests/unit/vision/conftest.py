import cv2
import numpy as np
import pytest


@pytest.fixture(scope="session")
def photo() -> np.ndarray:
    """An RGB image with slopes, hard edges, text and noise: 120 x 160."""
    rng = np.random.default_rng(7)
    y, x = np.mgrid[0:120, 0:160]
    image = np.stack([x * 1.5, y * 2.0, 255 - x - y * 0.5], axis=-1).clip(0, 255).astype(np.uint8)
    for _ in range(12):
        colour = [int(value) for value in rng.integers(0, 256, 3)]
        x1, y1, x2, y2 = (int(value) for value in rng.integers(0, 120, 4))
        cv2.rectangle(image, (x1, y1), (x2, y2), colour, int(rng.integers(-1, 3)) or 1)
    cv2.putText(image, "boxwright", (10, 70), cv2.FONT_HERSHEY_SIMPLEX, 0.8, (255, 255, 255), 2)
    noise = rng.normal(0, 6, image.shape)
    return (image + noise).clip(0, 255).astype(np.uint8)
