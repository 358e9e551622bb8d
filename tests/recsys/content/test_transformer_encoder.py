"""A tiny random Llama as an encoder of texts."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from recsys.content.transformer_encoder import TransformerEncoder, model_digest
from tests.recsys.testing.refusals import assert_refused

TEXTS = ["rose soap", "a much longer text about a clay mask for dry skin", "", "x", "\ud800 odd"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A Llama of two layers over bytes, random weights, saved as Hugging Face does."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: place for place, piece in enumerate(["<end>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=8192,
        bos_token_id=None,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_pooled_states_agree_with_one_text_at_a_time(tiny, pooling):
    """Slow truth: no padding, no batch, the definition of the pooling."""
    encoder = TransformerEncoder(tiny, pooling=pooling, batch_size=3, device="cpu")
    model = LlamaForCausalLM.from_pretrained(tiny).model.eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny)
    vectors = encoder.encode(TEXTS)
    assert vectors.shape == (5, encoder.dim) == (5, 24)
    assert not vectors[2].any()
    for row in (0, 1, 3):
        with torch.inference_mode():
            ids = tokenizer(TEXTS[row], return_tensors="pt")["input_ids"]
            states = model(ids).last_hidden_state[0]
        truth = (states.mean(0) if pooling == "mean" else states[-1]).numpy()
        assert np.allclose(vectors[row], truth / np.linalg.norm(truth), atol=1e-5)


def test_the_name_changes_with_weights_pooling_and_length(tiny, tmp_path):
    names = {
        TransformerEncoder(tiny, device="cpu").name,
        TransformerEncoder(tiny, device="cpu", pooling="last").name,
        TransformerEncoder(tiny, device="cpu", max_tokens=9).name,
    }
    assert len(names) == 3
    before = model_digest(tiny)
    (tiny / "README.md").write_text("not a weight")
    assert model_digest(tiny) == before
    other = shutil.copytree(tiny, tmp_path / "tiny")
    assert model_digest(other) == before
    content = (other / "model.safetensors").read_bytes()
    (other / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert model_digest(other) != before


def test_weights_that_could_run_code_and_folders_without_a_model_are_refused(tiny, tmp_path):
    pickled = tmp_path / "pickled"
    shutil.copytree(tiny, pickled, ignore=shutil.ignore_patterns("*.safetensors"))
    (pickled / "pytorch_model.bin").write_bytes(b"a pickle")
    assert_refused(
        {
            r"a folder with a config\.json, or a \.gguf": lambda: TransformerEncoder(tmp_path),
            "is no model": lambda: TransformerEncoder(tmp_path / "gone.gguf"),
            "cannot load the model .*pickled": lambda: TransformerEncoder(pickled, device="cpu"),
        }
    )
