import json

import pytest

from tests.benchmarks.reproduction.scaling import fit_law, law_text, read_rungs, write_study


def planted(width, depth, share, digest="d" * 16):
    weights, events = 100 * width * width * depth, int(200_000 * share)
    return {
        "data_set": "planted",
        "data_digest": digest,
        "recipe": "r" * 12,
        "device": "CPU",
        "width": width,
        "depth": depth,
        "share": share,
        "num_weights": weights,
        "num_events": events,
        "loss": 5 + 40 * weights**-0.4 + 800 * events**-0.6,
        "ndcg@10": 1 - (0.8 + 2 * weights**-0.4 + 30 * events**-0.6),
        "recall@10": 0.1,
        "seconds": 1.0,
    }


@pytest.fixture
def rungs(tmp_path):
    for width in (8, 16, 32):
        for depth in (1, 2):
            for share in (0.25, 0.5, 1.0):
                path = tmp_path / f"w{width}-d{depth}-s{share:g}-0.json"
                path.write_text(json.dumps(planted(width, depth, share)))
    return tmp_path


def test_the_study_finds_the_planted_law_in_loss_and_ranking(rungs, tmp_path):
    laws = write_study(rungs, tmp_path / "out")
    assert laws["loss"].size_power == pytest.approx(0.4, rel=0.1)
    assert laws["loss"].data_power == pytest.approx(0.6, rel=0.1)
    assert laws["ndcg@10"].floor == pytest.approx(0.8, rel=0.02)
    page = (tmp_path / "out" / "scaling.md").read_text()
    assert "18 runs" in page
    assert page.count("\n| 8 | ") == 6
    svg = (tmp_path / "out" / "scaling.svg").read_text()
    assert svg.startswith("<svg")
    assert "training events" in svg
    assert "width 32, depth 2" in svg


def test_a_law_is_written_as_a_formula(rungs):
    law = fit_law(read_rungs(rungs), "loss")
    assert law_text("loss", law).startswith("cross entropy, nats = ")


def test_rungs_of_different_data_are_refused_with_both_digests(rungs):
    other = planted(64, 1, 1.0, digest="e" * 16)
    (rungs / "w64-d1-s1-0.json").write_text(json.dumps(other))
    with pytest.raises(ValueError, match=r"dddd.*, eeee"):
        read_rungs(rungs)


def test_a_folder_without_rungs_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no rungs in"):
        read_rungs(tmp_path)
