"""RecBole's SASRec, an epoch at a time.

    python recbole_sasrec.py HISTORIES.npz DIM BLOCKS HEADS LENGTH

Its defaults otherwise: full softmax, Adam 1e-3, 2048 samples a batch, dropout 0.5; it makes a
sample of every prefix of a history.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from protocol import Histories, Rows, best_unseen, serve
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.data.interaction import Interaction
from recbole.model.sequential_recommender import SASRec
from recbole.utils import get_trainer, init_seed


def write_atomic_file(histories: Histories, folder: Path) -> None:
    """Write the histories as RecBole reads them."""
    folder.mkdir()
    lines = ["user_id:token\titem_id:token\ttimestamp:float"]
    for user, items in enumerate(histories.users()):
        lines += [f"{user}\t{item}\t{place}" for place, item in enumerate(items)]
    (folder / f"{folder.name}.inter").write_text("\n".join(lines) + "\n")


def settings(work: Path, dim: int, blocks: int, heads: int, length: int) -> Config:
    """Describe the model, the data and how they are split."""
    return Config(
        model="SASRec",
        dataset="histories",
        config_dict={
            "data_path": str(work),
            "checkpoint_dir": str(work),
            "load_col": {"inter": ["user_id", "item_id", "timestamp"]},
            "hidden_size": dim,
            "n_layers": blocks,
            "n_heads": heads,
            "inner_size": dim,
            "MAX_ITEM_LIST_LENGTH": length,
            "train_neg_sample_args": None,
            "eval_args": {
                "split": {"LS": "valid_only"},
                "order": "TO",
                "mode": "full",
                "group_by": "user",
            },
            "use_gpu": False,
            "show_progress": False,
            "worker": 0,
            "seed": 0,
            "reproducibility": False,
        },
    )


def main() -> None:
    histories = Histories.load(Path(sys.argv[1]))
    dim, blocks, heads, length = map(int, sys.argv[2:6])
    work = Path(tempfile.mkdtemp())
    write_atomic_file(histories, work / "histories")
    sys.argv = sys.argv[:1]  # RecBole reads the command line
    config = settings(work, dim, blocks, heads, length)
    init_seed(0, False)
    dataset = create_dataset(config)
    train_data, _, _ = data_preparation(config, dataset)
    model = SASRec(config, train_data.dataset)
    trainer = get_trainer(config["MODEL_TYPE"], config["model"])(config, model)
    token_of = dataset.field2id_token["item_id"]  # its numbers -> ours as text
    row_of = np.array([0, *(int(token) for token in token_of[1:])])
    number_of = np.zeros(histories.num_items + 1, np.int64)
    number_of[row_of] = np.arange(len(row_of))
    seen = [items[:-1] for items in histories.users()]
    epoch = 0

    def train_epoch() -> float:
        nonlocal epoch
        begin = time.process_time()
        trainer._train_epoch(train_data, epoch)
        epoch += 1
        return time.process_time() - begin

    def lists() -> Rows:
        model.eval()
        inputs = torch.zeros(len(seen), length, dtype=torch.int64)
        lengths = torch.tensor([min(len(items), length) for items in seen])
        for row, items in zip(inputs, seen, strict=True):
            row[: min(len(items), length)] = torch.from_numpy(number_of[items[-length:]])
        with torch.no_grad():
            found = model.full_sort_predict(
                Interaction({"item_id_list": inputs, "item_length": lengths})
            )
        scores = np.full((len(seen), histories.num_items + 1), -np.inf, np.float32)
        scores[:, row_of] = found.view(len(seen), -1).numpy()
        return best_unseen(scores, seen)

    serve(train_epoch, lists, histories.held_out())


if __name__ == "__main__":
    main()
