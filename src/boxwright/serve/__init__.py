"""The detector server: `boxwright.serve("best")`, or `boxwright serve best` on the command line."""

import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """Makes `boxwright.serve(...)` a call: the function has the name of this package."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        from boxwright.serve.run import serve

        serve(*args, **kwargs)


sys.modules[__name__].__class__ = _Room
