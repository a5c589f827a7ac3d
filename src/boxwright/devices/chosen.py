"""The device that a model runs on, as users name it: `cpu`, `cuda`, `cuda:1`, `hpu` or `auto`. It needs no torch."""

from dataclasses import dataclass
from typing import Any

from boxwright.core import catalogue
from boxwright.core.errors import BoxwrightError, UsageError, check_choice
from boxwright.devices.detect import find_accelerators, find_plugins

CPU = "cpu"
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Chosen:
    """A device: its name in the catalogue, and which one of several.

    Example:
        >>> Chosen.parse("cuda:1"), str(Chosen("cuda", 1)), str(Chosen("cuda"))
        (Chosen(name='cuda', number=1), 'cuda:1', 'cuda')
    """

    name: str = CPU
    number: int = 0

    @classmethod
    def parse(cls, word: str) -> "Chosen":
        """Return the device of a word other than `auto`.

        Raises:
            UsageError: there is no such device.
        """
        name, colon, number = word.partition(":")
        check_choice("device", name, (*catalogue.names("device"), AUTO))
        if colon and (name in (CPU, AUTO) or not number.isdecimal()):
            raise UsageError(f"device={word!r} is not possible. Use a name, or a name and a number, such as 'cuda:1'.")
        return cls(name, int(number or 0))

    def __str__(self) -> str:
        return f"{self.name}:{self.number}" if self.number else self.name

    @property
    def is_cpu(self) -> bool:
        """Whether it is the CPU."""
        return self.name == CPU

    def number_of(self, name: str) -> int:
        """Return the number for a model that is for the device of a name: this one's, or 0 if it is another device."""
        return self.number if name == self.name else 0

    def check(self) -> Any:
        """Return the `Device`, without touching its memory.

        Raises:
            UsageError: torch sees no such device.
            MissingDependencyError: a package that the device needs is not installed.
        """
        device = catalogue.load("device", self.name)()
        if self.number and not device.numbered:
            raise UsageError(f"device={str(self)!r} is not possible: each process has one. Leave the number out.")
        if self.number >= (count := device.count()):
            raise UsageError(f"device={str(self)!r} is not here: there are {count}, numbered from 0.")
        return device

    def open(self) -> tuple[Any, Any]:
        """Return the `Device` and torch's device, which becomes the current one of this process; raises as `check`."""
        device = self.check()
        return device, device.place(self.number)

    def describe(self) -> str:
        """Return the name with the product's, such as "cuda:1 (NVIDIA H200)"; raises as `check`."""
        device, place = self.open()
        return f"{self} ({device.title(place)})"


def check_device(word: str) -> str:
    """Return a device as the user named it, or `auto`.

    Raises:
        UsageError: there is no such device.
    """
    Chosen.parse(word)
    return word


def find_device(word: str) -> Chosen:
    """Return the device of a word; for `auto` the first accelerator that torch can use, else the CPU.

    torch is imported only if the system shows an accelerator.

    Raises:
        UsageError: there is no device of this name.
    """
    if word != AUTO:
        return Chosen.parse(word)
    for name in list_shown():
        try:
            Chosen(name).check()
        except BoxwrightError:
            continue
        return Chosen(name)
    return Chosen()


def list_shown() -> tuple[str, ...]:
    """Return the devices of which there is a driver's file or a plugin; torch may still be unable to use them."""
    shown = {one.kind for one in find_accelerators()} | {one.device for one in find_plugins()}
    return tuple(name for name in catalogue.names("device") if name in shown)
