import pytest
import torch

from recsys.evaluation.calibration import expected_calibration_error, reliability_curve
from recsys.layers.calibrator import Calibrator

pytestmark = pytest.mark.numerics


def drawn(num_rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits that are twice too sure and shifted, labels, and the true chances."""
    generator = torch.Generator().manual_seed(seed)
    true = torch.randn(num_rows, 1, generator=generator) * 1.5 - 1
    labels = (torch.rand(num_rows, 1, generator=generator) < true.sigmoid()).float()
    return 2 * true + 1, labels, true.sigmoid()


def test_distorted_logits_become_frequencies():
    calibrator = Calibrator(1)
    logits, labels, _ = drawn(20_000, 0)
    fresh, fresh_labels, chances = drawn(20_000, 1)
    before = reliability_curve(calibrator(fresh)[:, 0], fresh_labels[:, 0])
    calibrator.fit(logits, labels)
    found = calibrator(fresh)
    after = reliability_curve(found[:, 0], fresh_labels[:, 0])
    assert expected_calibration_error(before) > 0.1
    assert expected_calibration_error(after) < 0.02
    typical = (chances > 0.05) & (chances < 0.9)
    assert float((found - chances)[typical].abs().max()) < 0.02


def test_unobserved_labels_are_left_out_and_one_class_is_refused():
    logits, labels, _ = drawn(2_000, 4)
    one, other = Calibrator(1), Calibrator(1)
    one.fit(logits[:1000], labels[:1000])
    labels[1000:] = torch.nan
    other.fit(logits, labels)
    torch.testing.assert_close(one.values, other.values)
    with pytest.raises(ValueError, match="0 positive of 2000"):
        other.fit(logits, torch.zeros_like(labels))
    with pytest.raises(ValueError, match="wrong way round"):
        other.fit(-logits[:1000], labels[:1000])


def test_a_loaded_line_replaces_the_one_before_and_a_curve_is_refused():
    logits, labels, _ = drawn(2_000, 5)
    fitted, loaded = Calibrator(1), Calibrator(1)
    fitted.fit(logits, labels)
    loaded(logits)
    state = fitted.state_dict()
    loaded.load_state_dict(state)
    assert torch.equal(loaded(logits), fitted(logits))
    state["values"] = state["values"] ** 3
    loaded.load_state_dict(state)
    with pytest.raises(ValueError, match="off its line"):
        loaded(logits)
