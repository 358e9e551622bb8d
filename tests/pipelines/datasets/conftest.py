import os
from pathlib import Path

import pytest

MIRROR = os.environ.get("RECSYS_DATA_MIRROR")


@pytest.fixture
def real_mirror(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of real data sets that the tests were started with."""
    if not MIRROR:
        pytest.skip("needs real data sets: RECSYS_DATA_MIRROR=FOLDER make test")
    monkeypatch.setenv("RECSYS_DATA_MIRROR", MIRROR)
    return Path(MIRROR)
