"""The hooks of a user's callback: methods that a run calls by name."""

from collections.abc import Sequence

from boxwright.core.errors import UsageError

_LIKE_HOOKS = ("before_", "after_", "on_")


def check_hooks(callback: object, name: str, hooks: Sequence[str]) -> None:
    """Reject a callback with a method that is named like a hook but is never called.

    Args:
        callback: the user's object.
        name: what the message calls it, such as "callbacks[0]".
        hooks: the methods that are called.

    Raises:
        UsageError: there is such a method; the message lists the hooks.

    Example:
        >>> class Epochs:
        ...     def on_epoch_end(self): ...
        >>> check_hooks(Epochs(), "callbacks[0]", ["on_start", "on_end"])
        Traceback (most recent call last):
        ...
        boxwright.core.errors.UsageError: callbacks[0] has a method 'on_epoch_end', which is never called. ...
    """
    kind = type(callback)
    for method in dir(kind):
        if method.startswith(_LIKE_HOOKS) and method not in hooks and callable(getattr(kind, method, None)):
            raise UsageError(
                f"{name} has a method {method!r}, which is never called. Choose from: {', '.join(hooks)}. If it is a "
                "helper of your own, begin its name with an underscore."
            )
