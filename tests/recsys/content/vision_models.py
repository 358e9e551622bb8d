"""Vision models of a few weights, as Hugging Face writes them to a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

SIDE = 16
"""Pixels of an image's side, as the models read it."""
PATCH = 4


def write_vision_model(folder: Path, kind: str = "vit") -> Path:
    """Write a model with weights as drawn; ``vit`` or ``clip``."""
    import torch
    import transformers

    library: Any = transformers
    sizes: dict[str, Any] = {
        "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 32,
    }  # fmt: skip
    vision = {**sizes, "image_size": SIDE, "patch_size": PATCH}
    torch.manual_seed(0)
    if kind == "vit":
        model = library.ViTModel(library.ViTConfig(**vision))
        shape = {"height": SIDE, "width": SIDE}
        processor = library.ViTImageProcessorPil(size=shape)
    else:
        words = {**sizes, "vocab_size": 40, "max_position_embeddings": 8}
        config = library.CLIPConfig(text_config=words, vision_config=vision, projection_dim=24)
        model = library.CLIPModel(config)
        processor = library.CLIPImageProcessorPil(
            size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}
        )
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def write_image(path: Path, colour: tuple[int, int, int], seed: int = 0) -> Path:
    """Write an image of a colour with noise."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(-20, 20, (20, 24, 3))
    pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(path)
    return path
