"""A week of the synthetic year: served and fresh at its end, every fault found, nothing lost."""

from collections import Counter
from collections.abc import Iterator

import pytest

from serving.recommend import Recommender
from serving.schemas import Request
from tests.forked.commands import write_program
from tests.year.clock import reset_clock
from tests.year.shop import YearShop
from tests.year.year import FAULTS, features_rows, lost_and_doubled, run_year, summary


@pytest.fixture(autouse=True)
def real_clock_afterwards() -> Iterator[None]:
    yield
    reset_clock()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_week_of_faults_ends_served_fresh_and_whole(tmp_path, forking, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("RECSYS_DATA_CACHE", str(tmp_path / "cache"))
    program = write_program(tmp_path / "clock", forking, "-m", "tests.year.clock")
    shop = YearShop(tmp_path, days=8, program=[program])
    year = run_year(shop)
    words = summary(year)
    assert year.unexpected == [], words
    injected = Counter(one.kind for one in year.faults)
    assert set(injected) == set(FAULTS), words
    assert [one for one in year.faults if not one.found] == [], words
    assert lost_and_doubled(year) == (0, 0), words
    assert features_rows(year) == sum(frame.height for frame in shop.truth.values())

    served = shop.served
    assert served is not None
    assert sorted(served.partitions) == [day.isoformat() for day in shop.truth]
    recommender = Recommender.load(shop.workspace / "bundles" / "current")
    user = shop.truth[shop.last_day]["user_id"][-1]
    assert len(recommender.make(Request(user_id=user, k=5)).reply.items) == 5
