"""`lcrag audit`: whether collections contain the answers to an experiment's questions, and searches find them."""

import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from lcrag.commands.audit.searching import Observations, observations, search
from lcrag.commands.audit.tables import counts, tables
from lcrag.commands.describe.named_parts import NamedParts
from lcrag.commands.rehearse.answerable import passages_here
from lcrag.composition.components import resolved_folder
from lcrag.composition.stand_ins import Call, Composition, Kind, StandIn, bound_settings, bound_value, composed
from lcrag.composition.used_bindings import check_used
from lcrag.data.questions import Question
from lcrag.episodes.passage_cuts import MATCHING
from lcrag.errors import UserError
from lcrag.evaluation.answerable import ROWS, Audited, Golds, held_golds
from lcrag.evaluation.tables import to_markdown, to_rich
from lcrag.limits import Amount, Passages
from lcrag.policy import Tokenizer, load_tokenizer
from lcrag.retrieval import Collections
from lcrag.runs import write_json, write_text
from lcrag.runs.display import make_console, progress_display
from lcrag.runs.files import write_json_lines
from lcrag.train.evaluation import Evaluation

HELD = "held"  # folder with the golds in each collection, from which an interrupted audit continues


@dataclasses.dataclass(frozen=True)
class TokenizerOnly:
    """The part of a policy that an audit needs; `tokenizer` is None if its folder is missing."""

    tokenizer: Tokenizer | None


def _tokenizer_only(call: Call) -> TokenizerOnly:
    folder: str = call.arguments.get("folder", "policy.folder is not set")
    here = (resolved_folder(folder) / "tokenizer.json").is_file()
    return TokenizerOnly(load_tokenizer(resolved_folder(folder)) if here else None)


def audit(
    output_dir: pathlib.Path,
    words: Sequence[str] = (),
    *,
    cuts: Sequence[Passages] = (1, 3, 5, 10, 20),
    searches: Amount = 500,
    within: Passages | None = None,
) -> None:
    """Looks for the gold answers of an experiment's questions in its collections; no policy is built.

    Args:
      output_dir: Folder for `audit.jsonl`, `audit.json` and `audit.md`.
      words: Not used.
      cuts: Depths of the recall; the experiment's own number of passages is added.
      searches: Maximum number of questions of each split and language to search for, evenly chosen; 0: none.
      within: A question counts as answerable in a collection if this many first passages of a search with the question
        hold a gold, and all questions are searched for; None: if any passage holds one.

    Raises:
      UserError: no collections on this machine, or no question with a gold answer.
    """
    console, named = make_console(), NamedParts().stand_ins
    stand_ins: dict[Kind, StandIn] = {kind: named[kind] for kind in ("mesh", "model", "encoder")}
    stand_ins["policy"] = _tokenizer_only
    composition = composed("evaluate", stand_ins)
    training = bound_value("train", "questions", stand_ins) or ()
    cut_passages = bound_settings("Runner", stand_ins).get("cut_passages", MATCHING)
    check_used()
    collections, asked = _collections(composition), _questions(training, composition.arguments["evaluation"])
    golds = Golds(question for own in asked.values() for question in own)
    output_dir.mkdir(parents=True, exist_ok=True)
    held = scan(collections, golds, output_dir / HELD, console)
    shown = {split: _shown(composition, split, cut_passages) for split in asked}
    depths = {observed.passages for observed in shown.values() if observed is not None}
    rows: list[Audited] = []
    for split, questions in asked.items():
        own = [(question, _row(split, question, golds, held)) for question in questions]
        chosen = _evenly(own, searches if within is None else len(own))
        found = {}
        with progress_display(
            f"{split}: searches", len(chosen), unit="question", transient=True, console=console
        ) as display:
            for row in search(chosen, collections, golds, max((*cuts, *depths, within or 1)), shown[split]):
                found[row.key] = row
                display.update(len(found))
        rows += [found.get(row.key, row).stratified(within) for _, row in own]
    _show(rows, cuts, shown, collections, output_dir, console)


def _collections(composition: Composition) -> Collections:
    found = composition.arguments["collections"]
    if not found.languages:
        raise UserError("the experiment searches no collections, so there is nothing to audit: name some")
    if passages_here(found) is None:
        raise UserError(
            "the collections are on another machine, and an audit reads every passage: run it where they are, with"
            " --gin_file=retrieval/folder.gin and their folder"
        )
    return found


def _questions(training: Sequence[Question], evaluation: Evaluation) -> dict[str, list[Question]]:
    """Returns the distinct questions of each split."""
    splits = {"train": training, evaluation.split: evaluation.questions}
    asked = {
        split: list({question.key: question for question in questions}.values())
        for split, questions in splits.items()
        if questions
    }
    if not any(any(question.answers) for questions in asked.values() for question in questions):
        raise UserError("no question of the experiment has a gold answer to look for: audit one with answers")
    return asked


def scan(collections: Collections, golds: Golds, folder: pathlib.Path, console: Console) -> dict[str, dict[str, bool]]:
    """Returns the golds in each collection; collections that were scanned earlier are not scanned again."""
    folder.mkdir(exist_ok=True)
    held: dict[str, dict[str, bool]] = {}
    total, before = sum(len(collections.collection(code).corpus) for code in collections.languages), 0
    with progress_display("passages", total, unit="passage", transient=True, console=console) as display:

        def show(before: int, read: int) -> None:
            display.update(before + read)

        for code in collections.languages:
            collection, wanted = collections.collection(code), golds.all_of(code)
            digest = hashlib.sha256("\0".join([collection.fingerprint, *sorted(wanted)]).encode()).hexdigest()
            path = folder / f"{code}.json"
            display.phase(code)
            kept = _kept(path)
            if kept.get("of") != digest:
                kept = {"of": digest, "golds": held_golds(collection.corpus, wanted, functools.partial(show, before))}
                write_json(path, kept)
            held[code] = kept["golds"]
            before += len(collection.corpus)
            display.update(before)
    return held


def _kept(path: pathlib.Path) -> dict[str, Any]:
    """Returns the golds that an earlier audit found in a collection; empty if the file is missing or damaged."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) and isinstance(kept.get("golds"), dict) else {}


def _row(split: str, question: Question, golds: Golds, held: Mapping[str, Mapping[str, bool]]) -> Audited:
    levels = {code: golds.level(question, code, own) for code, own in held.items()}
    return Audited(
        split=split,
        dataset=question.dataset,
        question_id=question.id,
        language=question.language,
        kind=golds.kind(question),
        held={code: level for code, level in levels.items() if level},
    )


def _shown(composition: Composition, split: str, cut_passages: str) -> Observations | None:
    """Returns how the observations of a split are made; an evaluation may have other settings than the training."""
    method, evaluation = composition.arguments["method"], composition.arguments["evaluation"]
    if split == evaluation.split:
        method = method.with_settings(evaluation.program_settings)
    return observations(method, composition.arguments["policy"].tokenizer, cut_passages)


def _evenly(rows: Sequence[tuple[Question, Audited]], most: int) -> list[tuple[Question, Audited]]:
    """Returns at most `most` rows of each language, evenly chosen."""
    chosen = []
    for code in dict.fromkeys(question.language for question, _ in rows):
        own = [each for each in rows if each[0].language == code]
        chosen += [own[row] for row in np.linspace(0, len(own) - 1, min(most, len(own))).astype(int)]
    return chosen


def _show(
    rows: Sequence[Audited],
    cuts: Sequence[int],
    shown: Mapping[str, Observations | None],
    collections: Collections,
    output_dir: pathlib.Path,
    console: Console,
) -> None:
    known = next((each for each in shown.values() if each is not None), None)
    passages = {code: len(collections.collection(code).corpus) for code in collections.languages}
    found: dict[str, Any] = {
        "collections": passages,
        "hashes": collections.content_hashes(),
        "observation": "" if known is None else known.about,
        **counts(rows, cuts, None if known is None else known.passages),
    }
    write_json_lines(output_dir / ROWS, map(dataclasses.asdict, rows))
    write_json(output_dir / "audit.json", found)
    written = tables(found)
    read = ", ".join(f"{code} {count:,}" for code, count in passages.items())
    write_text(
        output_dir / "audit.md", "\n".join(["# Audit", "", *map(to_markdown, written), f"Passages: {read}.", ""])
    )
    for table in written:
        console.print(to_rich(table))
    if known is None:
        console.print(
            "Observations were not made: the program searches nothing, or the policy's tokenizer is not here."
        )
    console.print(f"written to {output_dir}", highlight=False)
