import os
from pathlib import Path

import pytest

MIRROR = os.environ.get("RECSYS_DATA_MIRROR")


@pytest.fixture
def real_mirror(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of real data sets that the tests were started with."""
    if not MIRROR:
        pytest.skip("set RECSYS_DATA_MIRROR to a folder with the real data sets")
    monkeypatch.setenv("RECSYS_DATA_MIRROR", MIRROR)
    return Path(MIRROR)
