"""Writes episodes as an inspect log (`.eval`), which `inspect view` shows; needs `pip install 'lcrag[inspect]'`.

A sample is a question in one language, and its epochs are the episodes that answer it. Every term of the reward is a
score; its mean over the log is a metric. An episode that ended with a failure has an error. Token ids and
log-probabilities are omitted; `lcrag.commands.formats.atif` keeps them.
"""

import collections
import datetime
import itertools
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lcrag.commands.formats.messages import messages_of
from lcrag.errors import UserError

IN_SAMPLE = ("prompt", "opening", "system", "turns", "tokens", "rewards", "answer", "golds")


def write_log(path: pathlib.Path, rows: Iterable[Mapping[str, Any]], *, task: str, model: str) -> None:
    """Writes rows of episodes as a log.

    Args:
      path: The file to write, with the extension `.eval`.
      rows: Rows of one file of `episodes/`.
      task: Name of the task in the log.
      model: Name of the policy.

    Raises:
      UserError: inspect is not installed.
    """
    try:
        from inspect_ai import log as logs
    except ImportError as error:
        raise UserError("logs of inspect need its package: pip install 'lcrag[inspect]'") from error
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    epochs: collections.Counter[str] = collections.Counter()
    samples = [_sample(row, epochs, model) for row in rows]
    spec = logs.EvalSpec(
        created=now,
        task=task,
        dataset=logs.EvalDataset(name=task, samples=len(epochs), sample_ids=list(epochs)),
        model=model,
        config=logs.EvalConfig(epochs=max(epochs.values(), default=1)),
    )
    completed = sum(sample.error is None for sample in samples)
    results = logs.EvalResults(total_samples=len(samples), completed_samples=completed, scores=_means(samples))
    stats = logs.EvalStats(started_at=now, completed_at=now)  # rows have no date
    log = logs.EvalLog(status="success", eval=spec, results=results, stats=stats, samples=samples)
    logs.write_eval_log(log, str(path), format="eval")


def _sample(row: Mapping[str, Any], epochs: collections.Counter[str], model: str) -> Any:
    from inspect_ai import log, scorer
    from inspect_ai import model as chat

    name = f"{row['dataset']}/{row['question_id']}/{row['language']}"
    epochs[name] += 1
    roles = {"system": chat.ChatMessageSystem, "user": chat.ChatMessageUser, "assistant": chat.ChatMessageAssistant}
    messages = [roles[each["role"]](content=each["content"]) for each in messages_of(row)["messages"]]
    opening = list(itertools.takewhile(lambda each: each.role != "assistant", messages))
    written = [turn["text"] for turn in row["turns"] if turn["by"] == "policy"]
    tokens = row.get("tokens", {"ids": (), "log_probabilities": ()})
    sampled = len(tokens["log_probabilities"])
    usage = chat.ModelUsage(input_tokens=len(tokens["ids"]) - sampled, output_tokens=sampled)
    waits = row.get("seconds", {}).get("waits", ())
    scores = {
        term: scorer.Score(value=math.nan if value is None else value, answer=row["answer"])
        for term, value in row["rewards"].items()
    }
    return log.EvalSample(
        id=name,
        epoch=epochs[name],
        input=opening,
        target=row.get("golds", []),
        messages=messages,
        output=chat.ModelOutput.from_content(model, written[-1] if written else ""),
        scores=scores,
        model_usage={model: usage},
        error=log.EvalError(message=row["failure"], traceback="", traceback_ansi="") if row.get("failure") else None,
        total_time=max((wait["end"] for wait in waits), default=None),
        metadata={key: value for key, value in row.items() if key not in IN_SAMPLE},
    )


def _means(samples: Sequence[Any]) -> list[Any]:
    from inspect_ai.log import EvalMetric, EvalScore

    values: dict[str, list[float]] = {}
    for sample in samples:
        for term, score in sample.scores.items():
            values.setdefault(term, []).extend([] if math.isnan(score.value) else [score.value])
    return [
        EvalScore(name=term, scorer=term, metrics={"mean": EvalMetric(name="mean", value=sum(own) / len(own))})
        for term, own in values.items()
        if own
    ]
