import peft
import pytest
import torch
from torch import nn

from recsys.data.batch import Jagged, JaggedBatch
from recsys.layers.embedding.collection import EmbeddingBags, TableConfig
from recsys.layers.lora.file import load_adapter, save_adapter
from recsys.layers.lora.linear import LoraAdapter, LoraConfig, digest_of_weights
from tests.recsys.testing.tensors import rounding

pytestmark = pytest.mark.numerics

OWN = torch.tensor([9, 3, 4, 3])
# Up to 4 rows a bag, each of rank 2, through 5 columns; corrected values are about 10.
TABLE_CLOSE = rounding(4 + 2 + 5, size=10.0)
CONFIG = LoraConfig(targets=("read",), tables=("item",), rank=2, alpha=6.0, max_share=1.0)


class Shop(nn.Module):
    """A table of items, one of categories and a layer that reads both."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        tables = [
            TableConfig(name="item", num_rows=12, embedding_dim=5, features=("item", "other")),
            TableConfig(
                name="category", num_rows=4, embedding_dim=5, features=("of",), pooling="mean"
            ),
        ]
        self.tables = EmbeddingBags(tables, "torch")
        self.read = nn.Linear(5, 3)

    def forward(self, batch: JaggedBatch) -> torch.Tensor:
        return self.read(sum(self.tables(batch).values()))


def batch() -> JaggedBatch:
    bags = Jagged.from_lists([[3, 9], [], [5], [4, 3, 0]])
    weights = torch.tensor([1.0, 0.5, 2.0, 1.0, -1.0, 1.0])
    return JaggedBatch(
        {
            "item": bags,
            "other": bags._replace(weights=weights),
            "of": Jagged.from_lists([[1], [2, 3], [], [1]]),
        }
    )


def table_filled(model: nn.Module) -> LoraAdapter:
    torch.manual_seed(1)
    adapter = LoraAdapter(model, CONFIG, rows={"item": OWN})
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.normal_()
    return adapter.eval()


@torch.no_grad()
def test_own_rows_move_by_the_formula_and_others_by_no_bit():
    model = Shop()
    adapter, digest, alone = table_filled(model), digest_of_weights(model), model(batch())
    one, weight = adapter.table_correction("item"), model.tables.weight("item")
    assert one.rows.tolist() == [3, 4, 9]
    expected = weight.double().clone()
    for place, row in enumerate([3, 4, 9]):
        expected[row] += 3.0 * (one.b[place].double() @ one.a.double())
    adapter.attach()
    corrected = model(batch())
    assert digest_of_weights(model) == digest
    adapter.detach()
    assert torch.equal(model(batch()), alone)
    weight.copy_(expected.float())
    for name, layer in adapter.layers.items():
        layer.weight += 3.0 * adapter.correction(name).b @ adapter.correction(name).a
    torch.testing.assert_close(model(batch()), corrected, rtol=0, atol=TABLE_CLOSE)


@torch.no_grad()
def test_what_is_saved_is_loaded_again_and_merged_by_peft(tmp_path):
    model = Shop()
    adapter = table_filled(model)
    save_adapter(adapter, tmp_path, domain="books")
    again = load_adapter(tmp_path, model)
    assert again.num_parameters == adapter.num_parameters
    for name, matrix in adapter.state_dict().items():
        assert torch.equal(again.state_dict()[name], matrix), name
    theirs = peft.PeftModel.from_pretrained(Shop(), str(tmp_path)).merge_and_unload()
    adapter.attach()
    torch.testing.assert_close(theirs(batch()), model(batch()), rtol=0, atol=TABLE_CLOSE)


def test_what_does_not_fit_is_refused_table():
    model = Shop()
    with pytest.raises(ValueError, match=r"needs rows of the domain in \[1, 12\), got 0"):
        LoraAdapter(model, CONFIG)
    for rows, told in (([0, 3], r"got 2 in \[0, 3\]"), ([3, 12], r"got 2 in \[3, 12\]")):
        with pytest.raises(ValueError, match=told):
            LoraAdapter(model, CONFIG, rows={"item": torch.tensor(rows)})
    for name, told in (
        ("user", "no embedding table 'user'; it has category, item"),
        ("category", "mean"),
    ):
        config = LoraConfig(targets=("read",), tables=(name,), rank=2, max_share=1.0)
        with pytest.raises(ValueError, match=told):
            LoraAdapter(model, config, rows={name: OWN})
    with pytest.raises(ValueError, match="tables must be a tuple"):
        LoraConfig(targets=("read",), tables="item")
