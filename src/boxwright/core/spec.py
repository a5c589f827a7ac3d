"""`Spec`: the description of a detector."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from boxwright.core.errors import UsageError, check_choice

Preprocessing = Literal["bgr255", "legacy"]
"""`bgr255`: BGR, 0 to 255. `legacy`: RGB, 0 to 1, ImageNet mean and deviation (official weights before 0.1.1)."""

OutputForm = Literal["raw", "scores", "decoded"]
"""`raw`: what the network gives. `scores`: objectness and classes through sigmoid. `decoded`: boxes in pixels too."""

LARGEST_SIDE = 8192
"""The largest height or width of a network's input."""

_MOST_CLASSES = 100_000
_STRIDES = range(2, 1025)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The inputs, outputs and classes of a detector: enough to run it without the code that trained it.

    Attributes:
        model: the architecture, a name of the catalogue, or "" if only a converted file exists.
        names: class names by class id.
        size_hw: height and width of the network's input.
        preprocessing: how pixels become input values.
        output: which steps from raw outputs to boxes and scores the model includes.
        strides: the pyramid levels behind the rows of the output.
        category_ids: the ids that the training data used for the classes; empty when there were none.
        activation: the network's activation function.
    """

    names: tuple[str, ...]
    size_hw: tuple[int, int]
    model: str = ""
    preprocessing: Preprocessing = "bgr255"
    output: OutputForm = "raw"
    strides: tuple[int, ...] = (8, 16, 32)
    category_ids: tuple[int, ...] = ()
    activation: str = "silu"

    def __post_init__(self) -> None:
        if not self.strides or any(stride not in _STRIDES for stride in self.strides):
            raise UsageError(
                f"strides={self.strides!r} are not possible. Use those of the network, such as (8, 16, 32)."
            )
        step = max(self.strides)
        if min(self.size_hw) < step or self.size_hw[0] % step or self.size_hw[1] % step:
            raise UsageError(
                f"size_hw={self.size_hw!r} does not fit the strides {self.strides!r}: "
                f"height and width must be multiples of {step}."
            )
        if max(self.size_hw) > LARGEST_SIDE:
            raise UsageError(
                f"size_hw={self.size_hw!r} is too large: at most {LARGEST_SIDE} pixels a side are possible."
            )
        check_choice("preprocessing", self.preprocessing, get_args(Preprocessing))
        check_choice("output", self.output, get_args(OutputForm))
        if not self.names:
            raise UsageError("A detector needs at least one class name.")
        if len(self.names) > _MOST_CLASSES:
            raise UsageError(f"{len(self.names)} classes are too many: at most {_MOST_CLASSES} are possible.")
        if self.category_ids and len(self.category_ids) != len(self.names):
            raise UsageError(f"{len(self.names)} class names but {len(self.category_ids)} category ids.")

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.names)

    @property
    def num_anchors(self) -> int:
        """The number of output rows for one image."""
        height, width = self.size_hw
        return sum((height // s) * (width // s) for s in self.strides)

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as plain JSON values."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Spec":
        """Return the spec that `to_dict` described; unknown keys are ignored.

        Raises:
            UsageError: a value is missing, of another kind, or not possible.
        """
        try:
            return cls._of(values)
        except UsageError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise UsageError(f"A value is missing or of another kind: {error!r}") from error

    @classmethod
    def from_json(cls, text: str) -> "Spec":
        """Return the spec in a JSON text, as our model files hold it.

        Raises:
            UsageError: it is not JSON, or not the description of a detector.
        """
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"It is not JSON: {error}") from error
        return cls.from_dict(values)

    @classmethod
    def _of(cls, values: dict[str, Any]) -> "Spec":
        if not isinstance(values["names"], list | tuple):
            raise UsageError(f"names={values['names']!r} is not a list.")
        return cls(
            model=str(values.get("model", "")),
            names=tuple(str(n) for n in values["names"]),
            size_hw=(int(values["size_hw"][0]), int(values["size_hw"][1])),
            preprocessing=values.get("preprocessing", "bgr255"),
            output=values.get("output", "raw"),
            strides=tuple(int(s) for s in values.get("strides", (8, 16, 32))),
            category_ids=tuple(int(c) for c in values.get("category_ids", ())),
            activation=str(values.get("activation", "silu")),
        )
