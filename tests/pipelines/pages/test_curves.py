import json

from pipelines.pages.report_data import read_curve


def write(folder, lines, **ending):
    folder.mkdir(parents=True)
    (folder / "curve.jsonl").write_text("\n".join(lines) + "\n")
    training = {"num_steps": 20, "best_step": 10, "stopped_early": True} | ending
    (folder / "training.json").write_text(json.dumps(training))


def test_validation_is_read_by_step(tmp_path):
    lines = [
        '{"step": 5, "loss": 2.0}',
        '{"step": 10, "ndcg@10": 0.2, "recall@10": 0.3}',
        '{"step": 10, "loss": NaN}',
        '{"step": 20, "loss": 1.0}',
    ]
    write(tmp_path / "given", lines)
    curve = read_curve(tmp_path / "given", "two_tower", "ndcg@10")
    assert curve.validation == [(10, 0.2)]
    assert (curve.best_step, curve.stopped_early) == (10, True)


def test_another_metric_stands_in_and_none_is_no_error(tmp_path):
    write(tmp_path / "given", ['{"step": 10, "recall@10": 0.3}'])
    write(tmp_path / "shuffled", ['{"step": 10, "loss": 0.3}'], best_step=None)
    given, shuffled, none = (
        read_curve(tmp_path / order, "two_tower", "ndcg@10") for order in ("given", "shuffled", "x")
    )
    assert (given.metric, given.validation) == ("recall@10", [(10, 0.3)])
    assert (shuffled.validation, shuffled.best_step) == ([], None)
    assert none is None
