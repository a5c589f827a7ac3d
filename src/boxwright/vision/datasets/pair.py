"""What happens to a sample on its way out of a data set."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from boxwright.core.errors import UsageError


@dataclass(frozen=True)
class PairTransform:
    """Changes an image and its target, each on its own or both together.

    Attributes:
        transform: changes the image.
        target_transform: changes the target.
        transforms: changes both: `image, target = transforms(image, target)`.
    """

    transform: Callable[[Any], Any] | None = None
    target_transform: Callable[[Any], Any] | None = None
    transforms: Callable[[Any, Any], tuple[Any, Any]] | None = None

    def __post_init__(self) -> None:
        if self.transforms is not None and (self.transform is not None or self.target_transform is not None):
            raise UsageError("Give either transforms (for both), or transform and target_transform, not all of them.")

    def __call__(self, image: Any, target: Any) -> tuple[Any, Any]:
        """Return the changed image and target."""
        if self.transforms is not None:
            return self.transforms(image, target)
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return image, target


def refuse_download(wanted: bool, name: str, place: str) -> None:
    """Return if nothing is to be downloaded.

    Raises:
        UsageError: something is; the message says where the files belong.
    """
    if wanted:
        raise UsageError(
            f"{name}(download=True) would need the network, which Boxwright doesn't use. "
            f"Put the files into {place!r} and leave download out."
        )
