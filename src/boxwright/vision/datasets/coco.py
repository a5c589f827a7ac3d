"""COCO: images with boxes in one JSON file."""

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from boxwright.core.errors import DataError
from boxwright.vision.datasets.decode import load_image
from boxwright.vision.datasets.pair import PairTransform
from boxwright.vision.decode import read_file


class CocoDetection(Dataset[tuple[Any, Any]]):
    """Gives (image, annotations) of a COCO set: an RGB array, and the list of the image's annotation dicts.

    It needs no pycocotools, so there is no attribute `coco`; `images` and `categories` hold what the file says.

    Args:
        root: the folder of the images.
        annFile: the JSON file.
        transform: changes the image.
        target_transform: changes the list of annotations.
        transforms: changes both.

    Attributes:
        ids: the ids of the images, sorted.
        images: by id, what the file says about an image.
        categories: by id, what the file says about a category.

    Raises:
        DataError: the JSON file is missing or not in COCO's form.
    """

    def __init__(
        self,
        root: str | Path,
        annFile: str | Path,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        transforms: Callable[[Any, Any], tuple[Any, Any]] | None = None,
    ) -> None:
        self.root = str(root)
        self.transforms = PairTransform(transform, target_transform, transforms)
        self._annotations: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        try:
            content = json.loads(read_file(annFile, "file"))
            self.images: dict[Any, dict[str, Any]] = {image["id"]: image for image in content["images"]}
            self.categories: dict[Any, dict[str, Any]] = {item["id"]: item for item in content.get("categories", [])}
            # Test sets come without annotations.
            for annotation in content.get("annotations", []):
                self._annotations[annotation["image_id"]].append(annotation)
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"The file {str(annFile)!r} is not in COCO's form ({type(error).__name__}: {error}). "
                "It must hold 'images' with ids and 'annotations' with image_ids."
            ) from error
        self.ids = sorted(self.images)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Return the image and its annotations."""
        image_id = self.ids[index]
        image = load_image(Path(self.root) / self.images[image_id]["file_name"])
        return self.transforms(image, list(self._annotations.get(image_id, ())))

    def __len__(self) -> int:
        return len(self.ids)
