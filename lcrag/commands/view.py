"""`lcrag view`: the episodes of runs and evaluations as one static HTML file, which needs no network.

Texts of episodes are hostile: they reach the page only as JSON without `<`, and its script shows them only as text. The
page's Content-Security-Policy, with the hashes of its style and script, allows no other script and no network.
"""

import base64
import codecs
import hashlib
import html
import itertools
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lcrag.commands.command_line import Arguments, whole_number
from lcrag.errors import UserError
from lcrag.files import resolved_folder
from lcrag.policy import load_tokenizer
from lcrag.rewards import c3_recall_bergen
from lcrag.runs import read_configured, read_metrics, write_text
from lcrag.runs.folder import CONFIG, RUN

TEMPLATE = Path(__file__).with_suffix(".html")
PAGE = "view.html"
MAX_POINTS = 400  # of a curve
CURVES = re.compile(
    "reward/.*|episode/(answered|searches(_native_.*)?|policy_tokens|failed)|loss/(policy|kl)|entropy|gradient_norm"
    "|sampling_training_gap|seconds/(rollout|retrieval_wait|update)"
)
DAMAGES = (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError)  # of a line


def view(arguments: Arguments) -> None:
    """Writes the page of the runs whose folders are the words."""
    typed = arguments.options
    if not arguments.words:
        raise UserError("lcrag view needs the folder of a run: lcrag view RUN [RUN ...]")
    if arguments.gin_files or arguments.bindings:
        raise UserError("lcrag view reads what runs have written and takes no configuration: leave --gin out")
    steps, megabytes = (
        whole_number(option, typed.get(option, default), 1)
        for option, default in (("--steps", "100"), ("--megabytes", "50"))
    )
    folders = list(dict.fromkeys(map(Path, arguments.words)))
    output = Path(typed["--output"]) if "--output" in typed else (arguments.output_dir or folders[0]) / PAGE
    runs = read_runs(folders, steps, megabytes)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, render_page(runs))
    for run in runs:
        print(f"{run['folder']}: {run['shown']}", flush=True)
    print(f"{output} ({output.stat().st_size / 1e6:.1f} MB): open it in a browser", flush=True)


def read_runs(folders: Sequence[Path], max_steps: int, max_megabytes: int) -> list[dict[str, Any]]:
    """Returns the data of each run: the newest steps and all evaluations, of each file the first groups that fit."""
    files = {folder: episode_files(folder) for folder in folders}
    newest = {
        folder: [file for file in every_file if file["step"] is not None][-max_steps:]
        + [file for file in every_file if file["step"] is None]
        for folder, every_file in files.items()
    }
    # The size limit of each file: what small files do not need goes to the others.
    sizes = sorted(file["path"].stat().st_size for kept_files in newest.values() for file in kept_files)
    left, share = max_megabytes * 1_000_000, sizes[-1]
    for number, size in enumerate(sizes):
        if size * (len(sizes) - number) > left:
            share = left // (len(sizes) - number)
            break
        left -= size
    runs: list[dict[str, Any]] = []
    for folder, kept_files in newest.items():
        configurations = [folder / CONFIG, *sorted((folder / "answers").glob("[!.]*_config.gin"))]
        configured = [read_configured(path) for path in configurations if path.is_file()]
        policies = [resolved_folder(str(name)) for config in configured if (name := config.get("policy.folder"))]
        tokenizers = (place for place in (folder / "policy", *policies) if (place / "tokenizer.json").is_file())
        decode = next((load_tokenizer(place).decode_bytes for place in tokenizers), None)
        try:
            paths = [folder / RUN, *sorted((folder / "answers").glob("[!.]*_run.json"))]
            about = json.loads(next(path for path in paths if path.is_file()).read_text(encoding="utf-8"))
            facts = {name: str(about[name]) for name in ("started", "seed", "commit") if name in about}
            facts["command"] = shlex.join(about["command"])
        except (StopIteration, OSError, ValueError, TypeError, KeyError):
            facts = {}  # the page does without
        metrics = read_metrics(folder)
        metrics = metrics[:: len(metrics) // MAX_POINTS + 1]
        curves = list(dict.fromkeys(name for record in metrics for name in record if CURVES.fullmatch(name)))
        curves.sort(key=lambda name: (name != "reward/total", not name.startswith(("reward/", "episode/"))))
        parts = [_read_part(file, decode, share) for file in kept_files]
        steps = sum(file["step"] is not None for file in files[folder])
        groups, all_groups = (sum(part[name] for part in parts) for name in ("groups", "all_groups"))
        shown = f"{sum(len(part['episodes']) for part in parts)} episodes, {groups} of {all_groups} groups"
        run: dict[str, Any] = {
            "method": str(next(filter(None, (config.get("Method.name") for config in configured)), folder.name)),
            "about": facts,
            "name": folder.resolve().name,
            "folder": str(folder),
            "curves": {name: [record.get(name) for record in metrics] for name in ("step", *curves)} if metrics else {},
            "divided": decode is not None,
            "shown": shown + (f", {min(steps, max_steps)} of {steps} steps" if steps else ""),
            "cut": groups < all_groups or max_steps < steps,
            "parts": parts,
        }
        runs.append(run)
    asked = Counter(key for run in runs for key in {key for part in run["parts"] for key in part["questions"]})
    if len(runs) > 1 and max(asked.values()) == 1:
        names = " and ".join(map(str, folders))
        raise UserError(f"{names} have no question in common: view each alone, or raise --steps and --megabytes")
    named = Counter(run["name"] for run in runs)
    return [run if named[run["name"]] == 1 else run | {"name": run["folder"]} for run in runs]


def episode_files(folder: Path) -> list[dict[str, Any]]:
    """Returns path, label, step (None: an evaluation) and `extremes` of each file, in the order of steps, then by name.

    `extremes` says that it has only the best and the worst episode of each group.
    """
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: give the folder of a run or of an evaluation")
    steps: dict[int, dict[str, Any]] = {}
    evaluations = []
    for path in sorted((folder / "episodes").glob("[!.]*.jsonl")):
        match = re.fullmatch(r"(step|extremes)_(\d+)", path.stem)
        step, extremes = int(match[2]) if match else None, match is not None and match[1] == "extremes"
        label = path.stem.replace("_", " ") if step is None else f"step {step}"
        file = {"path": path, "label": label, "step": step, "extremes": extremes}
        if not path.stat().st_size:
            continue
        if step is None:
            evaluations.append(file)
        elif step not in steps or not extremes:  # the whole step, if there is one
            steps[step] = file
    if not steps and not evaluations:
        raise UserError(f"{folder} has no episodes: give the --output_dir of `lcrag train` or `lcrag evaluate`")
    return [*(steps[step] for step in sorted(steps)), *evaluations]


def _read_part(file: Mapping[str, Any], decode: Callable[[Sequence[int]], bytes] | None, share: int) -> dict[str, Any]:
    """Reads the first groups of a file, at least one and at most `share` bytes; a text is stored once, by its index."""
    lines = list(enumerate(file["path"].read_bytes().splitlines(), start=1))
    groups, sizes, episodes = [], Counter[str](), []
    texts: dict[str, int] = {}
    number = 0

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        for number, line in lines:  # noqa: B007
            groups.append(str(json.loads(line, parse_constant=refuse)["group"]))
            sizes[groups[-1]] += len(line)
        ends = dict(zip(sizes, itertools.accumulate(sizes.values()), strict=True))
        kept = {group for group, end in ends.items() if end <= share or group == groups[0]}
        for (number, line), group in zip(lines, groups, strict=True):  # noqa: B007
            if group in kept:
                episodes.append(page_episode(json.loads(line), texts, decode))
    except DAMAGES as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{file['path']}, line {number}, is not an episode ({reason}): remove that line") from error
    if not any(episode["rewards"] for episode in episodes):  # as in evaluations without a reward
        judged = [episode for episode in episodes if episode["golds"]]
        recalls = c3_recall_bergen([row["answer"] for row in judged], [row["golds"] for row in judged])
        for episode, recall in zip(judged, recalls.tolist(), strict=True):
            episode["recall"] = round(recall, 4)
    return {name: value for name, value in file.items() if name != "path"} | {
        "groups": len(kept),
        "all_groups": len(sizes),
        "questions": sorted({episode["key"] for episode in episodes}),
        "texts": list(texts),
        "episodes": episodes,
    }


def page_episode(
    row: Mapping[str, Any], texts: dict[str, int], decode: Callable[[Sequence[int]], bytes] | None
) -> dict[str, Any]:
    """Converts a row of `episodes/*.jsonl` for the page; adds the environment's texts to `texts`, text -> its index.

    Without the tokenizer's `decode_bytes` the policy's texts are not divided into tokens.
    """
    tokens = row["tokens"]
    ids, scores = iter(tokens["ids"]), iter(tokens["log_probabilities"])
    counts: dict[int, int] = {}  # of the tokens of each turn; -1 is the prompt
    sampled: dict[int, dict[str, Any]] = {}
    for turn, count in tokens["pieces"]:
        counts[turn], turn_ids = count, list(itertools.islice(ids, count))
        if turn >= 0 and row["turns"][turn]["by"] == "policy":
            rounded = [None if score is None else round(score, 3) for score in itertools.islice(scores, count)]
            lengths = decode and token_lengths(row["turns"][turn]["text"], turn_ids, decode)
            sampled[turn] = {"ids": turn_ids, "lengths": lengths, "scores": rounded}

    def text_of(value: Any) -> str:
        if not isinstance(value, str):
            raise TypeError(f"{value!r} stands where a text should")
        return value

    def index_of(text: str) -> int:
        return texts.setdefault(text_of(text), len(texts))

    return {
        "key": f"{row['dataset']}/{row['question_id']}",
        "language": row["language"],
        "group": str(row["group"]),
        "number": row["episode"],
        "question": text_of(row["question"]),
        "golds": [text_of(gold) for gold in row["golds"]],
        "prompt": {"text": index_of(row["prompt"]), "count": counts.get(-1)},
        "turns": [
            {"by": "policy", "text": text_of(turn["text"]), "count": counts.get(place), **sampled.get(place, {})}
            if turn["by"] == "policy"
            else {"by": turn["by"], "text": index_of(turn["text"]), "count": counts.get(place)}
            for place, turn in enumerate(row["turns"])
        ],
        "answer": None if row["answer"] is None else text_of(row["answer"]),
        "failure": row.get("failure"),
        "finished": row["outcome"]["finished"],
        "counts": {name: int(count) for name, count in row["outcome"]["counts"].items() if count},
        "rewards": {name: None if value is None else float(value) for name, value in row["rewards"].items()},
        "advantage": None if row["advantage"] is None else float(row["advantage"]),
        "version": row["policy_version"],
        "waits": [
            {**wait, "start": float(wait["start"]), "end": float(wait["end"])}
            for wait in row.get("seconds", {}).get("waits", [])
        ],
        "completions": [
            {"model": asked.get("model"), "prompt": text_of(asked["prompt"]), "text": text_of(asked["text"])}
            for asked in row.get("completions", ())
        ],
    }


def token_lengths(text: str, ids: Sequence[int], decode: Callable[[Sequence[int]], bytes]) -> list[int] | None:
    """Returns the length of each token's part of a text, in UTF-16 units as JavaScript counts; None if they differ.

    A character spread over several tokens belongs to the last. Bytes beyond the text (end of sequence, bytes after a
    stop string) have length 0.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    pieces = [decoder.decode(decode([token])) for token in ids]
    if not ("".join(pieces) + decoder.decode(b"", final=True)).startswith(text):
        return None
    ends = np.minimum(list(itertools.accumulate(map(len, pieces))), len(text))
    units = list(itertools.accumulate((1 + (ord(character) > 0xFFFF) for character in text), initial=0))
    return np.diff([units[end] for end in ends], prepend=0).tolist()


def render_page(runs: Sequence[Mapping[str, Any]]) -> str:
    """Returns the page of the result of `read_runs` as one HTML text."""
    index, elements = [], []
    for number, run in enumerate(runs):
        index.append({**run, "parts": []})
        for place, part in enumerate(run["parts"]):
            name = f"part-{number}-{place}"
            data = script_json({"texts": part["texts"], "episodes": part["episodes"]})
            elements.append(f'<script type="application/json" id="{name}">{data}</script>')
            about = {key: value for key, value in part.items() if key not in ("texts", "episodes")}
            index[-1]["parts"].append({"id": name, "run": number, "episodes": len(part["episodes"]), **about})
    template = TEMPLATE.read_text(encoding="utf-8")

    def hash_of(start: str, end: str) -> str:
        inside = template.partition(start)[2].partition(end)[0]
        return "sha256-" + base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()

    filled = {
        "title": html.escape(", ".join(run["name"] for run in index)),
        "style_hash": hash_of("<style>", "</style>"),
        "script_hash": hash_of('<script type="module">', "</script>"),
        "index": script_json(index),
        "parts": "\n".join(elements),
    }
    return re.sub(r"\{\{ (\w+) \}\}", lambda match: filled[match[1]], template)


def script_json(value: Any) -> str:
    r"""Returns JSON that is safe in a `<script type="application/json">`, whatever its texts.

    `<` is written as `\u003c`, so no text can end the element or begin a comment. Lone surrogates, which UTF-8 cannot
    encode, U+2028 and U+2029 are also escaped.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return re.sub("[<\u2028\u2029\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)
