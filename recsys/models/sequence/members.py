"""Members of a sequence model as models of their own, and models put side by side as members.

Members only meet in the sum of their cosines, so a model can be put together from models trained
apart, and its first members can answer alone where time is short.

Axes: D width of a member, N item rows, F content width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from recsys.data.batch import Jagged
from recsys.models.item_tower import OF_EVENTS, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig as SequenceConfig
from recsys.models.sequence.model import SequenceModel

ENCODER = "encoder.members."
CONTENT = "item_tower.content."


def alone(config: SequenceConfig, number: int) -> SequenceConfig:
    """Describe one member as a model of its own."""
    return replace(
        config,
        embedding_dim=config.embedding_dim // config.num_members,
        num_members=1,
        block=config.blocks_of(number),
        member_blocks=(),
        trained_apart=False,
        fast_members=None,
    )


def of_first(config: SequenceConfig) -> SequenceConfig:
    """Describe the members that answer where time is short as a model of their own."""
    count = config.fast_members
    if count is None:
        return config
    return replace(
        config,
        embedding_dim=config.embedding_dim // config.num_members * count,
        num_members=count,
        member_blocks=config.member_blocks[:count],
        fast_members=None,
    )


def side_by_side(config: SequenceConfig, members: Sequence[SequenceModel]) -> SequenceModel:
    """Join models of one catalogue into one, whose cosines are the mean of theirs."""
    expected = [alone(config, number) for number in range(config.num_members)]
    if [member.config for member in members] != expected:
        raise ValueError(
            f"a model of {config.num_members} members is joined from models of their settings, got "
            f"{len(members)} of {[member.config for member in members]}"
        )
    states: list[dict[str, Tensor]] = [member.state_dict() for member in members]

    def tensor_of(name: str) -> Tensor:
        if name.startswith(ENCODER):
            number, rest = name.removeprefix(ENCODER).split(".", 1)
            return states[int(number)][f"{ENCODER}0.{rest}"]
        if name.endswith(OF_EVENTS):
            return states[0][name]
        return torch.cat([state[name] for state in states], dim=width_of(name))

    whole = like(config, members[0])
    whole.load_state_dict({name: tensor_of(name) for name in whole.state_dict()})
    return whole.eval()


def first_members(model: SequenceModel) -> SequenceModel:
    """Take the members that answer where time is short; the model itself, where all do."""
    config = of_first(model.config)
    if config == model.config:
        return model
    state: dict[str, Tensor] = model.state_dict()

    def tensor_of(name: str) -> Tensor:
        if name.startswith(ENCODER) or name.endswith(OF_EVENTS):
            return state[name]
        return state[name].narrow(width_of(name), 0, config.embedding_dim)

    first = like(config, model)
    first.load_state_dict({name: tensor_of(name) for name in first.state_dict()})
    return first.eval()


def width_of(name: str) -> int:
    """Return the axis along which members share a tensor of the item tower.

    Tables are [N, D], the content layer [D, F].
    """
    return 0 if name.startswith(CONTENT) else 1


def like(config: SequenceConfig, model: SequenceModel) -> SequenceModel:
    """Build an untrained model over another one's catalogue, on its device."""
    categories = Jagged(model._category_rows, model._category_offsets)
    catalogue = ItemCatalogue(model._content, categories)
    return SequenceModel(config, model.inputs, catalogue).to(model._content.device)
