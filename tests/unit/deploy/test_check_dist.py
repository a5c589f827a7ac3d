"""`make check-dist` leaves out no extra."""

import runpy
import tomllib

from support.shared import ROOT


def test_each_extra_is_tried_in_an_environment_of_its_own() -> None:
    script = runpy.run_path(str(ROOT / "deploy/check_dist.py"))
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    tried = {script["FIRST"], *script["TORCH_FREE"], *script["WITH_TORCH"]} - {""}
    assert tried == extras - {"ipex"}  # it needs an older torch than constraints.txt has (make test-ipex)
    assert set(script["TRIES"]) == tried - {script["FIRST"]}
