import json
from dataclasses import replace
from functools import partial

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from recsys.data.batch import Jagged, JaggedBatch
from recsys.layers.embedding.collection import EmbeddingBags, TableConfig
from recsys.layers.lora.file import CONFIG, WEIGHTS, load_adapter, read_adapter, save_adapter
from recsys.layers.lora.linear import LoraAdapter, LoraConfig, digest_of_weights
from recsys.models.adapted import LoraBank
from tests.recsys.testing.refusals import assert_refused
from tests.recsys.testing.tensors import rounding

pytestmark = pytest.mark.numerics

# 12 inputs, 20 hidden, their norm, and ranks of 4 on both sides; corrected outputs are about 2.
CLOSE = rounding(12 + 20 + 20 + 4 + 4, size=2.0)
ANY = LoraConfig(targets=("*",), rank=4, alpha=6.0, max_share=1.0)


def base(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 20), nn.GELU(), nn.LayerNorm(20), nn.Linear(20, 8))


def filled(model: nn.Module, seed: int, config: LoraConfig = ANY) -> LoraAdapter:
    """An adapter that changes something, as if it had been trained."""
    torch.manual_seed(seed)
    adapter = LoraAdapter(model, config)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.normal_(std=0.3)
    return adapter.eval()


@torch.no_grad()
def test_each_chosen_adapter_corrects_as_alone_and_the_base_keeps_its_bits():
    model, inputs = base(), torch.randn(3, 5, 12)
    some = LoraConfig(targets=("0",), rank=2, max_share=1.0)
    adapters = {"books": filled(model, 1), "films": filled(model, 2, some)}
    bank, alone = LoraBank(model, adapters), model(inputs)
    for name, adapter in adapters.items():
        assert name in bank
        with bank.choose(name):
            found = model(inputs)
        adapter.attach()
        torch.testing.assert_close(found, model(inputs), rtol=0, atol=CLOSE)
        adapter.detach()
    for unknown in ("elsewhere", None):
        assert unknown not in bank
        with bank.choose(unknown):
            assert torch.equal(model(inputs), alone)
    assert torch.equal(model(inputs), alone)
    with pytest.raises(ValueError, match="has a bank already"):
        LoraBank(model, adapters)
    bank.remove()
    with bank.choose("books"):
        assert torch.equal(model(inputs), alone)


@torch.no_grad()
def test_peft_reads_what_is_saved_and_gives_the_same_outputs(tmp_path):
    model, inputs = base(), torch.randn(9, 12)
    adapter = filled(model, 1)
    save_adapter(adapter, tmp_path, domain="books")
    theirs = peft.PeftModel.from_pretrained(base(), str(tmp_path)).eval()
    adapter.attach()
    ours = model(inputs)
    torch.testing.assert_close(theirs(inputs), ours, rtol=0, atol=CLOSE)
    merged = theirs.merge_and_unload()
    torch.testing.assert_close(merged(inputs), ours, rtol=0, atol=CLOSE)
    adapter.detach()
    again = load_adapter(tmp_path, model).attach()
    assert torch.equal(model(inputs), ours)
    assert (read_adapter(tmp_path).domain, again.config.rank, again.config.alpha) == ("books", 4, 6)


@torch.no_grad()
def test_a_base_with_any_other_bit_is_refused_with_both_digests(tmp_path):
    model = base()
    save_adapter(filled(model, 1), tmp_path, domain="books")
    other = base()
    other[0].weight[0, 0] = torch.nextafter(other[0].weight[0, 0], torch.tensor(9.0))
    with pytest.raises(ValueError, match="trained on a base") as refused:
        load_adapter(tmp_path, other)
    assert digest_of_weights(model) in str(refused.value)
    assert digest_of_weights(other) in str(refused.value)
    with pytest.raises(ValueError, match="need one base"):
        LoraBank(model, {"a": filled(model, 1), "b": filled(other, 1)})


def test_what_does_not_fit_is_refused():
    def layers(*targets, **config):
        return lambda: LoraAdapter(base(), LoraConfig(targets=targets, **config))

    def tables(*rows, table="item"):
        config = replace(TABLE_CONFIG, tables=(table,))
        return lambda: LoraAdapter(Shop(), config, rows={table: torch.tensor(rows)})

    def settings(**fault):
        return lambda: LoraConfig(**{"targets": ("*",), **fault})

    assert_refused(
        {
            r"rank 9 is larger than layer 3 \(8 x 20\)": layers("*", rank=9, max_share=1.0),
            r"of the base's 468; at most 5.0% .* rank <= 0": layers("*", rank=4),
            r"'encoder.\*' names no linear layer .* it has 0, 3": layers("0", "encoder.*"),
            "rank must be": settings(rank=0),
            "alpha must be": settings(alpha=float("nan")),
            "dropout must be": settings(dropout=1.0),
            "max_share must be": settings(max_share=0.0),
            r"needs rows of the domain in \[1, 12\), got 0": lambda: LoraAdapter(
                Shop(), TABLE_CONFIG
            ),
            r"got 2 in \[0, 3\]": tables(0, 3),
            r"got 2 in \[3, 12\]": tables(3, 12),
            "no embedding table 'user'; it has category, item": tables(3, 4, table="user"),
            "mean": tables(3, 4, table="category"),
        }
    )


def change_config(directory, **changes):
    document = json.loads((directory / CONFIG).read_text())
    (directory / CONFIG).write_text(json.dumps(document | changes))


def change_tensors(directory, change, digest=None):
    tensors = load_file(directory / WEIGHTS)
    change(tensors)
    save_file(tensors, directory / WEIGHTS, digest or {"base_digest": digest_of_weights(base())})


KEY = "base_model.model.0.lora_A.weight"
DAMAGES = {
    "use_dora is True": lambda path: change_config(path, use_dora=True),
    "only 'LORA'": lambda path: change_config(path, peft_type="IA3"),
    "not a LoRA configuration": lambda path: (path / CONFIG).write_text("{"),
    "cannot be read": lambda path: (path / WEIGHTS).unlink(),
    "cannot be read as safetensors": lambda path: (path / WEIGHTS).write_bytes(b"x" * 40),
    "which base": lambda path: change_tensors(path, dict, {"other": "metadata"}),
    "NaN": lambda path: change_tensors(path, lambda t: t[KEY].fill_(torch.nan)),
    "do not agree on": lambda path: change_tensors(path, lambda t: t.pop(KEY)),
    r"\(3, 12\), rank and layer need \(4, 12\)": lambda path: change_tensors(
        path, lambda t: t.update({KEY: torch.zeros(3, 12)})
    ),
    "names no linear layer": lambda path: change_config(path, target_modules=["7"]),
}


def test_damaged_files_are_refused(tmp_path):
    model = base()
    for number, (said, break_it) in enumerate(DAMAGES.items()):
        folder = tmp_path / str(number)
        save_adapter(filled(model, 1), folder, domain="books")
        break_it(folder)
        assert_refused({said: partial(load_adapter, folder, model)})


OWN = torch.tensor([9, 3, 4, 3])
# Up to 4 rows a bag, each of rank 2, through 5 columns; corrected values are about 10.
TABLE_CLOSE = rounding(4 + 2 + 5, size=10.0)
TABLE_CONFIG = LoraConfig(targets=("read",), tables=("item",), rank=2, alpha=6.0, max_share=1.0)


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
    adapter = LoraAdapter(model, TABLE_CONFIG, rows={"item": OWN})
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
