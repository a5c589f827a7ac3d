"""Optional packages: what is missing, and the pip command that brings it."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from boxwright.core.errors import MissingDependencyError


def missing_packages(packages: Iterable[str]) -> tuple[str, ...]:
    """Return those of the packages that this Python does not have."""
    return tuple(package for package in packages if find_spec(package) is None)


def is_from(value: object, *modules: str) -> bool:
    """Return whether a value's class, or one that it inherits from, lives in one of these modules; imports nothing.

    Example:
        >>> from collections import OrderedDict
        >>> is_from(OrderedDict(), "collections"), is_from([], "collections")
        (True, False)
    """
    homes = {f"{kind.__module__}." for kind in type(value).__mro__}
    return any(home.startswith(f"{module}.") for home in homes for module in modules)


def require(*packages: str, extra: str, by: str) -> None:
    """Check that packages are installed; call it before a local import.

    Args:
        packages: names to import.
        extra: the extra of Boxwright that installs them.
        by: what needs them, as the subject of the message.

    Raises:
        MissingDependencyError: one of them is not installed.

    Example:
        >>> require("json", "no_such_package", extra="onnx", by="Runtime 'onnxruntime'")
        Traceback (most recent call last):
        boxwright.core.errors.MissingDependencyError: Runtime 'onnxruntime' needs no_such_package, which is not \
installed. Run: pip install 'boxwright[onnx]'
    """
    if missing := missing_packages(packages):
        which = "which is" if len(missing) == 1 else "which are"
        raise MissingDependencyError(
            f"{by} needs {' and '.join(missing)}, {which} not installed. Run: pip install 'boxwright[{extra}]'"
        )


def installed_version(package: str) -> str:
    """Return a package's version, or "" where it is not installed.

    Example:
        >>> installed_version("no_such_package")
        ''
    """
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
