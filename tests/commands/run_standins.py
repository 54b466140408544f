"""Folders as `lcrag train` and `lcrag evaluate` leave them, written at once, with answers of a known quality."""

import dataclasses
import json

import numpy as np

from lcrag.evaluation import Answered, Row, write_rows
from lcrag.files import write_json_lines
from lcrag.train.evaluation import answers_path

LANGUAGES, SEEN = ("en", "fi", "de"), ("en", "fi")
CONFIG = """
SEED = {seed}
policy.folder = '{policy}'
Method.name = '{method}'
Method.collections = @native_collection
{command}.seed = %SEED
train.question_share = {share}
train.questions_per_step = {couplings}
Evaluation.seen_languages = ('en', 'fi')
Evaluation.languages = ('en', 'fi', 'de')
"""
ABOUT = {"seed": 0, "commit": "abc123", "command": ["lcrag", "train"]}


def answers(right, seed, questions=30):
    """Answers of which a share is right, and the others another word; every other question is in a subset."""
    generator = np.random.default_rng(seed)
    return [
        Answered(
            question_id=str(number),
            dataset="toy",
            language=language,
            answer="Helsinki" if generator.random() < right else "Oslo",
            golds=("Helsinki",),
            searches=1,
            subsets=("copyable",) if number % 2 else (),
        )
        for number in range(questions)
        for language in LANGUAGES
    ]


def write_answers(folder, label, right, *, seed=0, decodings=("greedy",), inferences=1, split="held_out"):
    """The answers of a label, and what `evaluation.json` says of them."""
    rows = []
    for decoding in decodings:
        for number in range(1, inferences + 1):
            path = answers_path(folder, label, decoding, number)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json_lines(path, map(dataclasses.asdict, answers(right, (seed, number))))
        where = dict(model="m", dataset="toy", split=split, language="all", metric="c3_recall", count=9, seed=seed)
        rows.append(Row(method=f"{label}, {decoding}", value=right, **where))
    return rows


def training_run(
    folder, method, right, *, seed=0, share=1.0, couplings=2, labels=None, policy="atlas/cold_start", **options
):
    """A folder as `lcrag train` leaves it."""
    folder.mkdir(parents=True)
    values = dict(method=method, seed=seed, share=share, couplings=couplings, policy=policy, command="train")
    (folder / "config.gin").write_text(CONFIG.format(**values))
    (folder / "run.json").write_text(json.dumps({**ABOUT, "seed": seed}))
    rows = []
    for label, quality in {"after": right, **(labels or {})}.items():
        rows += write_answers(folder, label, quality, seed=seed, **options)
    write_rows(folder / "evaluation.json", rows)
    steps = [{"step": n, "reward/total": 0.1 * n + right, "episode/policy_tokens": 20 - n} for n in range(5)]
    write_json_lines(folder / "metrics.jsonl", steps)
    return folder


def evaluation(folder, method, right, *, label=None, seed=0, policy="atlas/cold_start", **options):
    """A folder as `lcrag evaluate` leaves it."""
    label = label or method
    folder.mkdir(parents=True, exist_ok=True)
    values = dict(method=method, seed=seed, share=1.0, couplings=2, policy=policy, command="evaluate")
    rows = write_answers(folder, label, right, seed=seed, **options)
    config = CONFIG.format(**values).replace("train.question_share = 1.0\ntrain.questions_per_step = 2\n", "")
    answers_path(folder, label, "config").with_suffix(".gin").write_text(config)
    answers_path(folder, label, "run").with_suffix(".json").write_text(json.dumps({**ABOUT, "seed": seed}))
    write_rows(folder / "evaluation.json", rows)
    return folder
