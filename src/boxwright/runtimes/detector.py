"""`DetectorSession`: a detector's outputs as one array, for predicting and evaluating."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import CheckpointError
from boxwright.core.spec import Spec
from boxwright.runtimes.base import Graph


class DetectorSession:
    """A `Session` over a graph whose outputs are boxes, objectness and classes, or all of them in one.

    The three stay separate inside the graph because their value ranges differ: a quantiser would round joined box
    offsets on the scale of the class scores.
    """

    def __init__(self, graph: Graph, spec: Spec, *, suppresses: bool = False) -> None:
        """Make a session.

        Args:
            graph: the loaded model.
            spec: what it detects.
            suppresses: whether the model itself suppresses overlapping boxes.
        """
        self.spec = spec
        self.suppresses = suppresses
        self._graph: Graph | None = graph

    @property
    def graph(self) -> Graph:
        """The loaded model.

        Raises:
            CheckpointError: the session is closed.
        """
        if self._graph is None:
            raise CheckpointError("This session is closed. Load the model again.")
        return self._graph

    @property
    def takes_bytes(self) -> bool:
        """Whether images may be uint8, which become float32 where the model runs."""
        return bool(getattr(self.graph, "takes_bytes", False))

    def __call__(self, images: NDArray[Any]) -> NDArray[np.float32]:
        """Return the (B, A, 5 + C) output of a (B, 3, H, W) input; fixed batches are padded and trimmed."""
        fixed, count = self.graph.signature.inputs[0].shape[0], len(images)
        if fixed is None or fixed == count:
            return self._run(images)
        filling = -count % fixed
        if filling:
            images = np.concatenate((images, np.repeat(images[-1:], filling, axis=0)))
        parts = [self._run(images[at : at + fixed]) for at in range(0, len(images), fixed)]
        return np.concatenate(parts)[:count]

    def close(self) -> None:
        """Close the graph."""
        if self._graph is not None:
            self._graph.close()
        self._graph = None

    def _run(self, images: NDArray[Any]) -> NDArray[np.float32]:
        signature = self.graph.signature
        if images.dtype == np.uint8 and self.takes_bytes:
            signature.check_shapes([images])
            outputs = self.graph.run([images])
        else:
            outputs = self.graph.run(signature.check([images]))
        try:
            joined: NDArray[np.float32] = outputs[0] if len(outputs) == 1 else np.concatenate(outputs, axis=2)
        except ValueError as error:
            shapes = [one.shape for one in outputs]
            raise CheckpointError(f"The model's outputs, of shapes {shapes!r}, are not those of a detector.") from error
        height, width = images.shape[2:]
        places = sum((height // stride) * (width // stride) for stride in self.spec.strides)
        expected = (len(images), places, 5 + self.spec.num_classes)
        if joined.shape != expected:
            raise CheckpointError(
                f"The model's output has the shape {joined.shape!r}; {len(images)} images of {height}x{width} and "
                f"{self.spec.num_classes} classes need {expected!r}. Its description does not fit it."
            )
        return joined.astype(np.float32, copy=False)
