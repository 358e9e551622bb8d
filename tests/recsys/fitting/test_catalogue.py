"""The catalogue has one row for each name."""

from pipelines.config.run import RunConfig
from recsys.fitting.catalogue import CATALOGUE
from recsys.models.names import MODELS


def test_each_model_has_one_row_and_its_settings_a_section() -> None:
    assert [spec.names for spec in CATALOGUE] == list(MODELS)
    sections = RunConfig(workspace="unused")
    for spec in CATALOGUE:
        assert isinstance(getattr(sections, spec.names.section), spec.config)
        assert (spec.num_examples is not None) == bool(spec.names.training)
    assert len({one.name for one in MODELS}) == len(MODELS)
