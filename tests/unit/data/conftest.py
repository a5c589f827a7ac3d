"""What the tests of the loader share; other files define `records` of their own."""

import pytest

from boxwright.data.dataset import DetectionDataset
from boxwright.data.policy import policy_for
from boxwright.data.records import Records
from boxwright.data.synthetic import generate_scenes


@pytest.fixture(scope="session")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """Return 22 images, which no test may change."""
    return generate_scenes(tmp_path_factory.mktemp("scenes") / "set", images=22, seed=5, size_hw=(80, 120))


@pytest.fixture
def training(records: Records) -> DetectionDataset:
    return DetectionDataset(records, (64, 96), policy=policy_for("yolox_s"), seed=11)
