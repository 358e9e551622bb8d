"""Images of items as vectors, by any vision model in a Hugging Face folder.

A model of texts and images (CLIP, arXiv:2103.00020; SigLIP, arXiv:2303.15343) gives the vector of
an image that it compares with texts; one of images alone (ViT, arXiv:2010.11929; DINOv2,
arXiv:2304.07193) its pooled state, or the state of its first token where it pools none.

Axes: n images, D width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recsys.content.encoder import Vectors
from recsys.content.language_model import model_digest

BATCH_SIZE = 32
"""Images encoded at once."""


class ImageEncoder:
    """Encodes image files, named by the sha256 of their bytes, so that a cache knows them."""

    shard_rows = 1024

    def __init__(self, path: Path, *, device: str | None = None) -> None:
        """Load the model; nothing is downloaded and no code of the folder runs."""
        import torch

        self._torch: Any = torch
        self._processor, model = load_vision_model(path)
        self._model = model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._files: dict[str, Path] = {}
        self.name = f"{path.name}-images-{model_digest(path)}"
        sizes = model.config
        self.dim = int(getattr(sizes, "projection_dim", None) or vision_config(sizes).hidden_size)

    def digests(self, files: Sequence[Path]) -> list[str]:
        """Return digests of files, for ``encode``."""
        found = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
        self._files.update(zip(found, files, strict=True))
        return found

    def encode(
        self, texts: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> Vectors:
        """Encode images that ``digests`` named, [n, D]; zeros for one that is no readable image."""
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for begin in range(0, len(texts), BATCH_SIZE):
            named = texts[begin : begin + BATCH_SIZE]
            images = {
                at: image for at, one in enumerate(named, begin) if (image := self._read(one))
            }
            if images:
                vectors[list(images)] = self._encoded(list(images.values()))
            if progress is not None:
                progress(begin + len(named))
        return vectors

    def _read(self, digest: str) -> Any | None:
        """Open an image as RGB; None where it cannot be read."""
        from PIL import Image

        try:
            with Image.open(self._files[digest]) as image:
                return image.convert("RGB")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            return None

    def _encoded(self, images: list[Any]) -> Vectors:
        pixels = self._processor(images=images, return_tensors="pt")["pixel_values"]
        pixels = pixels.to(self._model.device)
        with self._torch.inference_mode():
            if hasattr(self._model, "get_image_features"):
                found = self._model.get_image_features(pixel_values=pixels)
            else:
                found = self._model(pixel_values=pixels)
            pooled = getattr(found, "pooler_output", found)
            if pooled is None:
                pooled = found.last_hidden_state[:, 0]
        vectors: Vectors = pooled.float().cpu().numpy()
        return vectors


def vision_config(config: Any) -> Any:
    """Return what a model's configuration says of its images."""
    return getattr(config, "vision_config", config)


def load_vision_model(path: Path) -> tuple[Any, Any]:
    """Load (image processor, model in float32) from a Hugging Face folder."""
    if not (path / "config.json").is_file():
        raise ValueError(f"{path} is no vision model: it must be a folder with a config.json")
    import transformers
    from transformers.utils import logging as transformers_logging

    library: Any = transformers
    talk: Any = transformers_logging
    where: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    level = talk.get_verbosity()
    talk.disable_progress_bar()
    talk.set_verbosity_error()  # without torchvision images are prepared by Pillow, and it says so
    try:
        processor = library.AutoImageProcessor.from_pretrained(str(path), **where)
        model = library.AutoModel.from_pretrained(
            str(path), dtype="float32", use_safetensors=True, **where
        )
    except (OSError, ImportError, KeyError, ValueError) as error:
        raise ValueError(
            f"cannot load the vision model {path}: {str(error).splitlines()[0]}"
        ) from error
    finally:
        talk.set_verbosity(level)
        talk.enable_progress_bar()
    if not hasattr(vision_config(model.config), "patch_size"):
        raise ValueError(f"{path} is a {model.config.model_type} model, which reads no images")
    return processor, model.eval()


def missing_as_none(vectors: Vectors) -> list[Vectors | None]:
    """Take each row; None for one of zeros, for an image that cannot be read."""
    return [row if row.any() else None for row in vectors]


def files_in(folder: Path, names: Sequence[Any]) -> Mapping[int, Path]:
    """Find the files that items name, by the items' places; missing files are left out."""
    root, found = folder.resolve(), {}
    for place, name in enumerate(names):
        if name is None or not str(name).strip():
            continue
        path = (root / str(name).strip()).resolve()
        if not path.is_relative_to(root):
            raise ValueError(
                f"image {name!r} of item {place + 1} leads out of {folder}; name files below it"
            )
        if path.is_file():
            found[place] = path
    return found
