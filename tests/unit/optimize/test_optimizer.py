"""What the optimizer's functions refuse before anything is converted."""

from typing import Any

import pytest
import torch
from torch import nn

from boxwright.core.errors import UsageError
from boxwright.optimize.optimizer import InferenceOptimizer

pytestmark = pytest.mark.usefixtures("one_torch_thread")
ROWS = torch.rand(2, 4)


@pytest.mark.parametrize("function", ["quantize", "trace", "optimize"])
def test_a_converted_model_is_not_converted_again(function: str) -> None:
    with InferenceOptimizer() as optimizer:
        model: Any = InferenceOptimizer.trace(nn.Linear(4, 2), ROWS, "eager")
        with pytest.raises(UsageError, match=rf"converted already, and {function}\(\) .* Give the original"):
            getattr(optimizer, function)(model, ROWS)
        with pytest.raises(UsageError, match="not 'function'"):
            getattr(optimizer, function)(lambda x: x, ROWS)
