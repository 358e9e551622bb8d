import json

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from recsys.layers.lora.file import CONFIG, WEIGHTS, load_adapter, read_adapter, save_adapter
from recsys.layers.lora.linear import LoraAdapter, LoraConfig, digest_of_weights
from recsys.models.adapted import LoraBank
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
    with pytest.raises(ValueError, match=r"rank 9 is larger than layer 3 \(8 x 20\)"):
        LoraAdapter(base(), LoraConfig(targets=("*",), rank=9, max_share=1.0))
    with pytest.raises(ValueError, match=r"of the base's 468; at most 5.0% .* rank <= 0"):
        LoraAdapter(base(), LoraConfig(targets=("*",), rank=4))
    with pytest.raises(ValueError, match=r"'encoder.\*' names no linear layer .* it has 0, 3"):
        LoraAdapter(base(), LoraConfig(targets=("0", "encoder.*")))
    for fault in ({"rank": 0}, {"alpha": float("nan")}, {"dropout": 1.0}, {"max_share": 0.0}):
        with pytest.raises(ValueError, match=f"{next(iter(fault))} must be"):
            LoraConfig(targets=("*",), **fault)


def change_config(directory, **changes):
    document = json.loads((directory / CONFIG).read_text())
    (directory / CONFIG).write_text(json.dumps(document | changes))


def change_tensors(directory, change, metadata=True):
    digest = digest_of_weights(base())
    tensors = load_file(directory / WEIGHTS)
    change(tensors)
    save_file(tensors, directory / WEIGHTS, {"base_digest": digest} if metadata else None)


KEY = "base_model.model.0.lora_A.weight"
DAMAGES = {
    "another method": (lambda path: change_config(path, use_dora=True), "use_dora is True"),
    "another kind": (lambda path: change_config(path, peft_type="IA3"), "only 'LORA'"),
    "not JSON": (lambda path: (path / CONFIG).write_text("{"), "not a LoRA configuration"),
    "no weights": (lambda path: (path / WEIGHTS).unlink(), "cannot be read"),
    "cut": (lambda path: (path / WEIGHTS).write_bytes(b"x" * 40), "cannot be read as safetensors"),
    "no digest": (lambda path: change_tensors(path, dict, metadata=False), "which base"),
    "NaN": (lambda path: change_tensors(path, lambda t: t[KEY].fill_(torch.nan)), "NaN"),
    "missing": (lambda path: change_tensors(path, lambda t: t.pop(KEY)), "do not agree on"),
    "rank": (
        lambda path: change_tensors(path, lambda t: t.update({KEY: torch.zeros(3, 12)})),
        r"\(3, 12\), rank and layer need \(4, 12\)",
    ),
    "layer": (lambda path: change_config(path, target_modules=["7"]), "names no linear layer"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_refused(tmp_path, damage):
    model = base()
    save_adapter(filled(model, 1), tmp_path, domain="books")
    break_it, said = DAMAGES[damage]
    break_it(tmp_path)
    with pytest.raises(ValueError, match=said):
        load_adapter(tmp_path, model)
