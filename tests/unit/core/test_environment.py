from pathlib import Path

import pytest

from boxwright.core.environment import cache_folder, max_pixels
from boxwright.core.errors import UsageError


def test_the_cache_can_be_moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path))
    assert (cache_folder(), cache_folder("data")) == (tmp_path, tmp_path / "data")
    monkeypatch.delenv("BOXWRIGHT_CACHE")
    assert cache_folder("data") == Path.home() / ".cache" / "boxwright" / "data"


def test_the_limit_of_pixels_is_a_number_above_0(monkeypatch: pytest.MonkeyPatch) -> None:
    assert max_pixels() == 178_956_970
    monkeypatch.setenv("BOXWRIGHT_MAX_PIXELS", "500")
    assert max_pixels() == 500
    for wrong in ("0", "many", "1e9"):
        monkeypatch.setenv("BOXWRIGHT_MAX_PIXELS", wrong)
        with pytest.raises(UsageError, match="BOXWRIGHT_MAX_PIXELS"):
            max_pixels()
