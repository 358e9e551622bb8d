"""Metrics: known answers on the page, and as many series after a flood as before."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving.metrics import ServerMetrics, counted_route


def samples(metrics: ServerMetrics) -> dict[tuple[str, ...], float]:
    """Values on the page by name and label values, in the order of the labels' names."""
    page, kind = metrics.render()
    assert kind.startswith("text/plain; version=")
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_the_page_has_what_was_observed() -> None:
    metrics = ServerMetrics()
    metrics.observe_request("/v1/recommend", 200, 0.0042)
    metrics.observe_request("/v1/recommend", 200, 0.5)
    metrics.observe_request("/v1/recommend", 503, 0.0001)
    metrics.observe_reply(
        {"rank": 1.5, "total": 4.0}, ("sequence", "ease"), ("unknown_user",), fallback="popularity"
    )
    metrics.queued(0.004)
    metrics.note(queue_depth=2)
    metrics.refused("queue_full")
    metrics.note(connections=17)
    metrics.lists_kept(3, 0)
    metrics.lists_kept(2, 1)
    metrics.worker_restarted("killed")
    metrics.note(workers_ready=1, workers_wanted=2)
    found = samples(metrics)
    assert found["recsys_requests_total", "/v1/recommend", "200"] == 2
    assert found["recsys_requests_total", "/v1/recommend", "503"] == 1
    assert found["recsys_request_seconds_bucket", "0.004", "/v1/recommend"] == 1
    assert found["recsys_request_seconds_bucket", "0.006", "/v1/recommend"] == 2
    assert found["recsys_request_seconds_sum", "/v1/recommend"] == pytest.approx(0.5043)
    assert found["recsys_stage_seconds_sum", "rank"] == 0.0015
    assert found["recsys_stage_seconds_count", "total"] == 1
    assert found["recsys_replies_total",] == 1
    assert (found["recsys_sources_total", "sequence"], found["recsys_sources_total", "ease"]) == (
        1,
        1,
    )
    assert found["recsys_degraded_total", "unknown_user"] == 1
    assert found["recsys_fallbacks_total", "popularity"] == 1
    assert found["recsys_queue_depth",] == 2
    assert (found["recsys_queue_seconds_count",], found["recsys_queue_seconds_sum",]) == (1, 0.004)
    assert found["recsys_refused_total", "queue_full"] == 1
    assert found["recsys_connections",] == 17
    assert found["recsys_lists_logged_total", "kept"] == 5
    assert found["recsys_lists_logged_total", "dropped"] == 1
    assert found["recsys_worker_restarts_total", "killed"] == 1
    assert (found["recsys_workers_ready",], found["recsys_workers_wanted",]) == (1, 2)


def test_one_bundle_is_named_and_its_age_grows() -> None:
    metrics = ServerMetrics()
    metrics.bundle("v1", "aa", 100.0)
    metrics.swap(1.5)
    metrics.bundle("v2", "bb", 10.0)
    first, second = samples(metrics), samples(metrics)
    named = [key for key in first if key[0] == "recsys_bundle_info"]
    assert named == [("recsys_bundle_info", "bb", "v2")]
    assert 10 <= first["recsys_bundle_age_seconds",] < second["recsys_bundle_age_seconds",] < 70
    assert (first["recsys_swap_seconds_count",], first["recsys_swap_seconds_sum",]) == (1, 1.5)


def test_no_client_can_add_series() -> None:
    metrics = ServerMetrics()

    def flood(start: int) -> None:
        for number in range(start, start + 200):
            made_up = f"x{number}"
            metrics.observe_request(made_up, number, 0.001)
            metrics.observe_request("/v1/recommend", 10_000 + number, 0.001)
            metrics.observe_reply({made_up: 1.0}, (made_up,), (made_up,), made_up)
            metrics.refused(made_up)
            metrics.worker_restarted(made_up)

    flood(1_000)
    before = samples(metrics)
    flood(2_000)
    after = samples(metrics)
    assert before.keys() == after.keys()
    assert after["recsys_requests_total", "other", "other"] == 400
    assert after["recsys_requests_total", "/v1/recommend", "other"] == 400
    assert after["recsys_refused_total", "other"] == 400
    assert after["recsys_sources_total", "other"] == 400


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1/recommend", "/v1/recommend"),
        ("/v1/similar/a/b", "/v1/similar/{item_id}"),
        ("/v1/users/42/history", "/v1/users/{user_id}/history"),
        ("/v1/users/42", "/v1/users/{user_id}"),
        ("/v1/users", "/v1/users"),
        ("/pages/page.js", "/pages/{name}"),
        ("/pages/{name}", "/pages/{name}"),
        ("/wp-login.php", "other"),
    ],
)
def test_a_path_is_counted_under_its_route(path: str, route: str) -> None:
    assert counted_route(path) == route


def test_a_refused_bundle_shows_until_one_is_served() -> None:
    metrics = ServerMetrics()
    metrics.swap_refused()
    assert samples(metrics)["recsys_bundle_refused",] == 1
    metrics.note(bundle_refused=0)
    found = samples(metrics)
    assert found["recsys_bundle_refused",] == 0
    assert found["recsys_swaps_refused_total",] == 1
