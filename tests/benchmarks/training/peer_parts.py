"""RecTools' SASRec, by both of its paths, on arrays that ours trains on, as wide and as long.

They are fitted on the events of train and validation and rank test users by all items but those of
their histories. Each needs its library; see ``tests.benchmarks.training.parts``.

Axes: Q queries, N item rows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from recsys.data.dataset import Sequences
from recsys.models.sequence.config import SequenceConfig
from tests.benchmarks.peers.folder import Known

RANKED_AT_ONCE = 1_024


class Task(NamedTuple):
    """What a peer is fitted on and ranks."""

    known: Known
    users: NDArray[np.int64]
    """Who is ranked for, [Q]."""
    targets: NDArray[np.int64]
    """Their last events' items, [Q]."""
    config: SequenceConfig
    batch_size: int
    passes: int

    @classmethod
    def of(
        cls,
        events: Sequences,
        num_item_rows: int,
        config: SequenceConfig,
        batch_size: int,
        passes: int,
        num_users: int | None = None,
        num_ranked: int | None = None,
    ) -> Task:
        """Take some users' events, the first ones', and rank for some of them."""
        rows, offsets = np.asarray(events.item_rows), np.asarray(events.offsets)
        ends = np.asarray(events.validation_end)
        places = events.positions_before(ends)
        users = events.users_of(places)
        if num_users is not None:
            places, users = places[users <= num_users], users[users <= num_users]
        times = np.asarray(places if events.times is None else events.times[places])
        known = Known(
            user_rows=users,
            item_rows=rows[places],
            times=times,
            num_users=events.num_user_rows,
            num_item_rows=num_item_rows,
            begin=int(times.max()) + 1,
        )
        ranked = np.unique(users)[:num_ranked]
        return cls(known, ranked, rows[offsets[ranked + 1] - 1], config, batch_size, passes)


def measured(task: Task, ranks: NDArray[np.int64], times: Sequence[float]) -> dict[str, Any]:
    """Say how long what took, and NDCG@10 of the targets' ranks, 1 the first."""
    begin, prepared, fitted, done = times
    gains = np.where(ranks <= 10, 1 / np.log2(ranks + 1.0), 0.0)
    return {
        "preparing_seconds": prepared - begin,
        "fit_seconds": fitted - prepared,
        "ranking_seconds": done - fitted,
        "passes": task.passes,
        "users": len(task.users),
        "events": len(task.known.user_rows),
        "ndcg@10": float(gains.mean()),
    }


def rectools(task: Task) -> dict[str, Any]:
    """Fit and rank by RecTools, which prepares the data as it fits."""
    from rectools import Columns

    from tests.benchmarks.peers.transformers import dataset_of, sasrec

    known, config = task.known, task.config
    begin = time.perf_counter()
    model = sasrec(
        known,
        epochs=task.passes,
        n_factors=config.embedding_dim // config.num_members,
        n_blocks=config.num_blocks,
        n_heads=config.num_heads,
        session_max_len=config.max_length,
        batch_size=task.batch_size,
        lr=1e-3,
        loss="softmax",
    ).model
    fitted = time.perf_counter()
    own = np.isin(known.user_rows, task.users)
    dataset = dataset_of(known.user_rows[own], known.item_rows[own], known.times[own])
    table = model.recommend(task.users, dataset, k=10, filter_viewed=True)
    done = time.perf_counter()
    places = np.searchsorted(task.users, table[Columns.User].to_numpy())
    hits = table[Columns.Item].to_numpy() == task.targets[places]
    ranks = np.full(len(task.users), 11, np.int64)
    ranks[places[hits]] = table[Columns.Rank].to_numpy()[hits]
    return measured(task, ranks, (begin, begin, fitted, done))


def rectools_fast(task: Task) -> dict[str, Any]:
    """Fit and rank by the networks of ``rectools.fast_transformers``, its faster path.

    It ships sequences built on the GPU and the network, and leaves the loop to its user: this one
    is what its own UniSRec model runs, a Lightning trainer with the softmax over all items.
    """
    from rectools.fast_transformers import FlatSASRecNet, SequenceBatchDataset, build_sequences

    from tests.benchmarks.peers.transformers import quiet_trainer

    known, config = task.known, task.config
    times = [time.perf_counter()]
    columns = (known.user_rows, known.item_rows, known.times)
    users, item_rows, moments = (torch.from_numpy(np.asarray(one)) for one in columns)
    length = config.max_length
    read, labels, items, owners = build_sequences(
        users, item_rows, moments, max_len=length, device="cuda"
    )
    # Its loader copies from the host, as its own model's does.
    examples = SequenceBatchDataset(read.cpu(), labels.cpu())
    batches = torch.utils.data.DataLoader(examples, batch_size=task.batch_size, shuffle=True)
    torch.cuda.synchronize()
    times.append(time.perf_counter())
    width = config.embedding_dim // config.num_members
    net = FlatSASRecNet(len(items), width, config.num_blocks, config.num_heads, length)
    quiet_trainer(max_epochs=task.passes).fit(lightning_loop(net), batches)
    torch.cuda.synchronize()
    times.append(time.perf_counter())
    places = torch.searchsorted(owners.cpu(), torch.from_numpy(task.users))
    net = net.cuda().eval()
    latest = torch.cat([read[:, 1:], labels[:, -1:]], dim=1)[places.to(read.device)]
    numbers = torch.zeros(known.num_item_rows, dtype=torch.int64)
    numbers[items.cpu()] = torch.arange(len(items))
    ranks = []
    for first in range(0, len(task.users), RANKED_AT_ONCE):
        here = slice(first, first + RANKED_AT_ONCE)
        targets = numbers[torch.from_numpy(task.targets[here])].cuda()
        with torch.no_grad():
            scores = net.encode_last(latest[here]) @ net.all_item_embeddings().T
        own = scores.gather(1, targets[:, None])
        taken = latest[here]
        padded = torch.cat([scores.new_zeros(len(scores), 1), scores], dim=1)
        padded = padded.scatter(1, taken, -torch.inf)[:, 1:]
        ranks.append(((padded > own).sum(1) + 1).cpu())
    times.append(time.perf_counter())
    return measured(task, torch.cat(ranks).numpy(), times)


def lightning_loop(net: nn.Module) -> Any:
    """Wrap a network that scores all items in Lightning's training step."""
    from pytorch_lightning import LightningModule

    class Loop(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            # Items are counted from 1 in labels and from 0 in scores; 0 is padding.
            scores = self.net(batch).flatten(0, 1)
            return functional.cross_entropy(scores, batch["y"].flatten() - 1, ignore_index=-1)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    return Loop()
