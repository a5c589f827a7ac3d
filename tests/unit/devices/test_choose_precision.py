"""What `precision="auto"` means on a machine."""

import pytest

from boxwright.core.errors import UsageError
from boxwright.devices.support import choose_precision


@pytest.mark.parametrize(
    ("isa", "chosen"),
    [({"avx2"}, "32"), ({"avx512"}, "32"), ({"avx512", "bf16"}, "bf16"), ({"avx512", "bf16", "amx"}, "bf16")],
)
def test_auto_is_bf16_where_the_processor_has_instructions_for_it(isa: set[str], chosen: str) -> None:
    assert choose_precision("auto", "cpu", frozenset(isa)) == chosen


@pytest.mark.parametrize("named", ["32", "bf16", "64", "nonsense"])
def test_a_named_precision_stays(named: str) -> None:
    assert choose_precision(named, "cuda", frozenset()) == named


def test_on_another_device_auto_is_an_error() -> None:
    with pytest.raises(UsageError, match="chooses for a CPU"):
        choose_precision("auto", "cuda", frozenset({"bf16"}))
