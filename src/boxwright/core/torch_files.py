"""The errors of `torch.load(weights_only=True)`, explained in our own words. It needs no torch."""

import pickle
import re
import struct

# Seen with files that are cut off, damaged, made up, or that hold other objects than tensors.
UNREADABLE = (
    pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError, AttributeError, TypeError, struct.error,
    OSError, ArithmeticError, AssertionError, ImportError, MemoryError,
)  # fmt: skip


def why_unreadable(error: BaseException) -> str:
    """Return why torch could not read a file, as one sentence.

    If torch refuses an object, its message recommends `weights_only=False`, which runs any code in the file. That
    advice is left out.

    Example:
        >>> why_unreadable(pickle.UnpicklingError("Weights only load failed. … Unsupported global: GLOBAL os.system"))
        "it holds other Python objects than tensors ('os.system'), and loading those could run code."
    """
    text = str(error).strip()
    if "weights_only" in text or "Weights only" in text or "WeightsUnpickler" in text:
        found = re.search(r"GLOBAL ([\w.]+)", text)
        which = f" ({found[1]!r})" if found else ""
        return f"it holds other Python objects than tensors{which}, and loading those could run code."
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}."
    first = text.splitlines()[0].rstrip(".") if text else type(error).__name__
    return f"{first}."
