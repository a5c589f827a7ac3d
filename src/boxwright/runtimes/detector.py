"""A detector's three outputs as one array: what predicting and evaluating work with."""

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.spec import Spec
from boxwright.runtimes.base import Graph


class DetectorSession:
    """A graph with the outputs boxes, objectness and classes (or all of them in one) behind the session seam.

    The three stay apart inside the graph: they have value ranges of their own, and a quantiser that joined them would
    round the box offsets on the scale of the class scores.
    """

    def __init__(self, graph: Graph, spec: Spec, *, suppresses: bool = False) -> None:
        """Make a session.

        Args:
            graph: the loaded model.
            spec: what it detects.
            suppresses: whether boxes are suppressed inside it.
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

    def __call__(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the (B, A, 5 + C) output of a (B, 3, H, W) input; a fixed batch is filled up and cut again."""
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

    def _run(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        outputs = self.graph.run(self.graph.signature.check([images]))
        joined: NDArray[np.float32] = outputs[0] if len(outputs) == 1 else np.concatenate(outputs, axis=2)
        if joined.shape[2] != 5 + self.spec.num_classes:
            raise UsageError(
                f"The model gives {joined.shape[2]} values a place, but {self.spec.num_classes} classes "
                f"need {5 + self.spec.num_classes}."
            )
        return joined.astype(np.float32, copy=False)
