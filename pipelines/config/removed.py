"""Keys of a run's configuration that were renamed or removed, and what to do instead."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pipelines.config.run import SHARED, TRAININGS

RENAMED_KEYS: Mapping[str, str] = {
    "training.device": "device",
    "sequence_training.device": "device",
    "generative_training.device": "device",
    "ranker_training.device": "device",
    "adapter.device": "device",
    "enrichment.device": "device",
    "training": "two_tower_training",
    "features.user_columns": "features.user_features",
    "features.partitions": "features.file_groups",
    "release.compared_by": "release.deciding_metric",
}
"""Old and new name of a key or a section, in the order in which they are renamed."""
FIXED_KEYS: Mapping[str, str] = {
    "torchrun": "device_memory host_memory batch_size sharding",
    "filters": "earliest_year",
    "enrichment": ("max_reply_tokens max_attempts max_text_chars max_unreachable batch_size"),
    "enrichment.endpoint": "first_wait_seconds temperature",
    "content": "word_weight",
    "content.endpoint": "first_wait_seconds temperature token_limit_field max_text_chars",
    "semantic_ids": "contrastive_weight resolution balanced",
    "ease": "num_weights choice_items max_events max_history",
    "repeats": "max_history",
    "next_basket": "max_basket max_history num_neighbours",
    "content_similarity": "max_history whitening",
    "two_tower": "id_init_scale num_heads",
    "sequence": "position_buckets absolute_positions id_init_scale max_scores",
    "generative": "position_buckets first_weight id_init_scale dense_label_smoothing max_scores",
    "generative_training.teaching": "temperature",
    "blend": "shrinkage_queries non_negative max_candidates",
    "search": "num_buckets temperature batch_size learning_rate",
    "ranker": (
        "cross_rank bias_rate dense_steps router_loss_weight router_certainty "
        "router_evenness id_init_scale task_weighting task_weights routed_by "
        "num_shared_experts combination"
    ),
    "ranker_training": "task_share shown_share line_l2 line_queries linear",
    "adapter": "alpha centred",
    "index": (
        "hnsw_neighbors hnsw_build_effort ivf_lists_per_sqrt_row masked_exact_max_rows "
        "build_threads seed"
    ),
    "evaluation": "max_scores category_slices listed",
    "release": "max_queried max_compared",
    "release.gate": (
        "max_calibration_ratio min_code_use_of_champion max_norm_ratio min_expert_load "
        "min_novelty min_category_spread max_moved_times max_copied_events list_length "
        "min_index_agreement max_calibration_error min_code_use max_parity_differences"
    ),
    "monitoring": "past_days min_past history_days",
}
"""Parameters of the library that are no keys: no preset, example or record has another value."""
FIXED_IN_TRAININGS = (
    "optimizer.beta1",
    "optimizer.beta2",
    "optimizer.eps",
    "optimizer.decay_embeddings",
    "schedule.warmup_steps",
    "schedule.decay_steps",
)
REMOVED_KEYS: Mapping[str, str] = {
    "blend.history_bounds": "leave it out: weights by the length of the history gained nothing",
    "generative.memory_orders": "leave it out: the memory of n-grams lost to no memory",
    "content.images": "name a column of the images' vectors in content.columns",
    "sequence.reads_types": "leave it out: types of events are read if the data has several",
    "sequence.block = sparse": "use attention: it was no better on real logs, in half of the time",
    "ranker_training.compared": "run once with each ranker.trunk and use recsys compare",
    "index.kind = hnsw": "use ivf_sq8, which is built and searched faster at equal recall",
    "enrichment.prompt_price": "leave it out: enrichment.json has the tokens read and written",
    "enrichment.completion_price": "leave it out: enrichment.json has the tokens read and written",
    "enrichment.cost_budget": "set enrichment.token_budget; enrichment.json has the tokens",
    "evaluation.num_resamples": "leave it out: intervals need no resampling",
    "evaluation.intervals": "leave it out: intervals take a tenth of a second and are always there",
    "splits.tie_orders": "leave it out: events of one time stay in the order of the files",
    "features.user_ids": "leave it out: users are their histories and features.user_features",
    "tracking.upload_bundles": "set tracking.bundles to the folder or URL that bundles go to",
    "tracking.keep_bundles": "remove old bundles from the folder tracking.bundles",
    "tracking.fetch_seconds": "leave it out: a fetch that was cut off is continued",
    "tracking.live_seconds": "leave it out: a run is sent when it is done",
    "generative.softmax_over": "leave it out: codes that lead to no item share no probability",
    **dict.fromkeys(
        (
            "generative.dense_weight",
            "generative.temperature",
            "generative.num_uniform_negatives",
            "generative.leave_out_history",
        ),
        "leave it out: the dense head of a generative model was removed",
    ),
    "enrichment.model = smollm2": "name a server: models this small described no items well",
    "item_knn": "leave it out: it added nothing to item_to_item and ease",
    "generative.memory_rows": "leave it out: the memory of n-grams lost to no memory",
    "semantic_ids.method = rq_vae": "use rq_kmeans, whose codes are nearer to the content",
    "semantic_ids.num_steps": "leave it out: it was for method rq_vae",
    "release.gate.judges": "leave it out: rubrics agreed with clicks less than held-out events do",
    "release.gate.max_size_ratio": "leave it out: the size of a bundle refuses nothing",
    "release.gate.min_judged": "leave it out: it was for judges of lists",
    "backtest.replay_share": "leave it out: a quarter of the older events is trained on again",
    "backtest.jobs": "leave it out: fits come one after the other, each on all cores",
    "monitoring.max_examples": "leave it out: the two-sample test was removed",
    "search.dim": "leave it out: spellings are compared without a text tower",
    "search.num_steps": "leave it out: spellings are compared without a text tower",
    "report": "leave it out: a report is named after its data set",
    "ray": "leave it out: a run prepares data on its machine, and torchrun trains on several",
    "engine = ray": 'use "local", or "torchrun" for training on several GPUs or machines',
    "data.watermark_days": "leave it out: an absent day is missing three days later",
    "ranker.trunk = shared_bottom": "use dense, which is the same network",
    "ranker.router": "leave it out: scores are a softmax, balanced by biases",
    **dict.fromkeys(
        [
            *(f"{name}.{key}" for name, keys in FIXED_KEYS.items() for key in keys.split()),
            *(f"{name}.{key}" for name in (SHARED, *TRAININGS) for key in FIXED_IN_TRAININGS),
        ],
        "leave it out: its default holds for every run",
    ),
}
"""Advice by key; a single value that was removed is listed as ``key = value``."""


def removal(key: str, value: object = None) -> str | None:
    """Return the complaint about a renamed or removed key or a removed value of one, or None."""
    key = re.sub(r"\[\d+\]", "", key)
    if key in RENAMED_KEYS:
        return f"{key!r} was renamed; write {RENAMED_KEYS[key]!r}"
    for removed in (key, f"{key} = {value}"):
        if removed in REMOVED_KEYS:
            return f"{removed!r} was removed; {REMOVED_KEYS[removed]}"
    return None
