"""How strongly training images are augmented: `AugmentPolicy`, and the numbers of each model."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from boxwright.core.errors import UsageError, check_choice

STEP = 32
"""Input sizes are multiples of this: the network's largest stride."""

Anchor = Literal["corner", "centre"]
"""The point of the mosaic's canvas that the affine map keeps in place: the top left of both, or the middle of both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AugmentPolicy:
    """How strongly training images are augmented. Angles are in degrees, shifts in fractions of the input size.

    Attributes:
        mosaic_prob: probability that four images are joined; the others are letterboxed.
        degrees: the mosaic is rotated by up to this, either way,
        translate: shifted by up to this,
        scale: scaled by a factor between these,
        shear: and sheared by up to this, on both axes.
        anchor: the point of the canvas that the affine map starts from. "corner" is what YOLOX does now, "centre" what
            its first versions did.
        partner_window: the other images of a mosaic are drawn from this many that came just before in the epoch's
            shuffled order, which saves decoding when no cache holds the set; None for the whole set.
        mixup_prob: probability that a mosaic is blended, half and half, with one more image.
        mixup_scale: that image is scaled by a factor between these.
        hsv_prob: probability that colours change.
        hsv_gains: by up to this, in steps of 8-bit HSV: hue (of 180), saturation, value (of 256).
        flip_prob: probability that the result is mirrored left to right.
        multiscale: how many steps of 32 a batch may be smaller and larger than the input size; None for no change.
        multiscale_stride: use only every n-th of these steps, counted from the input size.

    Example:
        >>> policy_for("yolox_nano").no_aug().mosaic_prob
        0.0
    """

    mosaic_prob: float = 1.0
    degrees: float = 10.0
    translate: float = 0.1
    scale: tuple[float, float] = (0.1, 2.0)
    shear: float = 2.0
    anchor: Anchor = "corner"
    partner_window: int | None = 128
    mixup_prob: float = 1.0
    mixup_scale: tuple[float, float] = (0.5, 1.5)
    hsv_prob: float = 1.0
    hsv_gains: tuple[float, float, float] = (5.0, 30.0, 30.0)
    flip_prob: float = 0.5
    multiscale: tuple[int, int] | None = (-5, 5)
    multiscale_stride: int = 1

    def __post_init__(self) -> None:
        def require(name: str, holds: bool, message: str) -> None:
            if not holds:
                raise UsageError(f"{name}={getattr(self, name)!r} {message}")

        for name in ("mosaic_prob", "mixup_prob", "hsv_prob", "flip_prob"):
            require(name, 0 <= getattr(self, name) <= 1, "is not a probability. Use 0 to 1.")
        for name in ("degrees", "translate", "shear"):
            require(name, getattr(self, name) >= 0, "is negative. It applies in both directions.")
        require("shear", self.shear < 45, "could fold the image flat. Use less than 45 degrees.")
        for name in ("scale", "mixup_scale"):
            low, high = getattr(self, name)
            require(name, 0 < low <= high, "is not a range of factors. Use two above 0, the smaller first.")
        gains = zip(self.hsv_gains, (90, 255, 255), strict=True)
        require("hsv_gains", all(0 <= gain <= top for gain, top in gains), "is out of range. Use up to 90, 255, 255.")
        require("anchor", self.anchor in ("corner", "centre"), "is unknown. Choose from: corner, centre.")
        window, scales = self.partner_window, self.multiscale
        require("partner_window", window is None or window >= 1, "holds no image. Use 1 or more, or None.")
        require(
            "multiscale", scales is None or scales[0] <= 0 <= scales[1], "must hold 0: steps smaller, steps larger."
        )
        require("multiscale_stride", self.multiscale_stride >= 1, "is not a step. Use 1 or more.")

    def no_aug(self) -> "AugmentPolicy":
        """Return the policy of the last epochs: mosaic and mixup are off; colours, flip and batch sizes stay."""
        return replace(self, mosaic_prob=0.0, mixup_prob=0.0)

    def with_fewer_sizes(self, most: int) -> "AugmentPolicy":
        """Return the policy with at most this many sizes of batches, spread over the same range.

        Example:
            >>> AugmentPolicy(multiscale=(-5, 5)).with_fewer_sizes(4).multiscale_stride
            3
        """
        if self.multiscale is None:
            return self
        low, high = self.multiscale
        stride = next(s for s in range(1, high - low + 2) if -low // s + high // s + 1 <= most)
        return replace(self, multiscale_stride=max(stride, self.multiscale_stride))

    def batch_size_hw(self, size_hw: tuple[int, int], u: float) -> tuple[int, int]:
        """Return the image size of a batch for a number `u` in [0, 1); the sides keep their ratio.

        Example:
            >>> AugmentPolicy(multiscale=(-5, 5)).batch_size_hw((640, 640), 0.0)
            (480, 480)
        """
        if self.multiscale is None:
            return size_hw
        base, stride = size_hw[0] // STEP, self.multiscale_stride
        # Rounded towards the input size, and never below one step.
        low, high = -(min(-self.multiscale[0], base - 1) // stride), self.multiscale[1] // stride
        steps = base + stride * (low + int(u * (high - low + 1)))
        return STEP * steps, STEP * max(int(steps * size_hw[1] / size_hw[0]), 1)

    def largest_hw(self, size_hw: tuple[int, int]) -> tuple[int, int]:
        """Return the largest size that a batch may have."""
        return self.batch_size_hw(size_hw, math.nextafter(1, 0))


# The two light models learn from mosaics that are scaled less, at 416 on batches of 320 to 640, and without mixup.
_LIGHT = AugmentPolicy(scale=(0.5, 1.5), mixup_prob=0.0, multiscale=(-3, 7))

POLICIES = {
    "yolox_nano": replace(_LIGHT, mosaic_prob=0.5),
    "yolox_tiny": _LIGHT,
    **dict.fromkeys(("yolox_s", "yolox_m", "yolox_l", "yolox_x", "yolov3"), AugmentPolicy()),
}
"""The policy that each model was published with; only `partner_window` is ours."""


def policy_for(model: str) -> AugmentPolicy:
    """Return the policy that a model was published with.

    Raises:
        UsageError: there is no such model.
    """
    check_choice("augmentation policy", model, POLICIES)
    return POLICIES[model]
