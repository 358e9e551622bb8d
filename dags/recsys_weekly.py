"""Every week: everything is trained anew, one task for each stage.

Stages that do not need each other run side by side; those that train share the pool recsys_gpu.
A stage that ran already is skipped by the command line itself, and a killed one resumes.
"""

from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable
from recsys_command import BUNDLE, GPU_POOL, CommandOperator, dag_settings, of_shop

# As `pipelines/stages/list.py` has them: what each reads; a test holds the two equal. Importing
# it each time the scheduler reads this file would cost seconds of every minute.
CONTENT = ("build_features", "embed_items")
MODELS = ("fit_baselines", "train_two_tower", "train_sequence", "train_generative")
STAGES = {
    "build_features": (),
    "enrich_items": ("build_features",),
    "embed_items": ("build_features", "enrich_items"),
    "fit_baselines": CONTENT,
    "train_two_tower": CONTENT,
    "train_sequence": CONTENT,
    "build_semantic_ids": (*CONTENT, "train_sequence"),
    "train_generative": (*CONTENT, "train_sequence", "build_semantic_ids"),
    "fit_blend": (*CONTENT, "build_semantic_ids", *MODELS, "enrich_items"),
    "train_ranker": (*CONTENT, "build_semantic_ids", *MODELS, "fit_blend"),
    "evaluate": (*CONTENT, "build_semantic_ids", *MODELS, "fit_blend", "train_ranker"),
    "report": ("build_features", *MODELS[1:], "fit_blend", "train_ranker", "evaluate"),
    "refit": (*CONTENT, "build_semantic_ids", *MODELS),
    "build_index": (*CONTENT, "refit"),
    "release": (
        *("enrich_items", *CONTENT, "build_semantic_ids", "fit_blend", "train_ranker"),
        *("evaluate", "refit", "build_index"),
    ),
    "adapt_domains": (*CONTENT, "train_two_tower", "train_sequence", "release"),
}
ON_GPU = {*STAGES} - {"build_features", "build_index", "evaluate", "report", "release"}

with DAG(
    **dag_settings("recsys_weekly", within=timedelta(hours=20)),
    description="Everything trained anew, released",
    schedule=CronTriggerTimetable("0 5 * * 0", timezone="UTC"),
    doc_md=__doc__,
):
    tasks = {
        name: CommandOperator(
            task_id=name,
            arguments=["run", "--quiet", *of_shop(), "--stage", name],
            outlets=[BUNDLE] if name == "release" else [],
            **({"pool": GPU_POOL} if name in ON_GPU else {}),
        )
        for name in STAGES
    }
    for name, reads in STAGES.items():
        for read in reads:
            tasks[read] >> tasks[name]
