"""The sources of Translate-R1's training questions (appendix I): XL-Sum, Nemotron-CrossThink, and made instructions.

XL-Sum (Hasan et al., 2021: https://arxiv.org/abs/2106.13822): BBC articles with a summary in its first sentence, a file
of JSON lines per language and split, `amharic_train.jsonl`. Nemotron-CrossThink (Akter et al., 2025:
https://arxiv.org/abs/2504.13941): its questions with options A to J at most, in English. The paper made its
instructions itself, of keywords and structural constraints; those here are ours.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import gin
import numpy as np
import pydantic

from lcrag.data.questions import (
    ALL_TIERS,
    INSTRUCTION_FOLLOWING,
    MULTIPLE_CHOICE,
    TRANSLATION,
    Question,
    known_languages,
    limited,
)
from lcrag.data.rows import Row, Text, counted_bad_rows, data_file, dataset_folder, read_rows
from lcrag.errors import Count, UserError, typed
from lcrag.rewards.domains import option

XLSUM_NAMES: Mapping[str, str] = {  # the files' names of languages; Serbian is in two scripts
    **{"am": "amharic", "ar": "arabic", "bn": "bengali", "zh": "chinese_simplified", "en": "english", "fr": "french"},
    **{"ha": "hausa", "hi": "hindi", "ig": "igbo", "id": "indonesian", "ja": "japanese", "ko": "korean"},
    **{"ky": "kyrgyz", "ne": "nepali", "om": "oromo", "fa": "persian", "pt": "portuguese", "ru": "russian"},
    **{"sr": "serbian_cyrillic", "si": "sinhala", "so": "somali", "es": "spanish", "sw": "swahili", "te": "telugu"},
    **{"th": "thai", "tr": "turkish", "uk": "ukrainian", "vi": "vietnamese", "yo": "yoruba"},
}
_XLSUM_SOURCE = "https://huggingface.co/datasets/csebuetnlp/xlsum"


class XlsumRow(Row):
    """An article; its summary is the highlight that the article begins with on the web."""

    id: Text
    summary: Text
    text: Text


@gin.configurable
@typed
def xlsum_questions(
    split: Literal["train", "val", "test"] = "train",
    languages: Sequence[str] = ("en",),
    domain: Literal["summarisation", "translation"] = "summarisation",
    folder: str | None = None,
    limit: Count | None = None,
    seed: int = 0,
) -> list[Question]:
    """Returns XL-Sum's articles, whose answers are their summaries, or the summaries as texts to translate.

    Articles are not parallel: each has its own id. Summaries to translate are sources of `lcrag curate translations`,
    which makes a question of each for both directions; they have no answer themselves.
    """
    languages = known_languages(languages, tuple(XLSUM_NAMES), "xlsum")
    root, questions = dataset_folder("xlsum", folder), list[Question]()
    with counted_bad_rows() as bad_rows:
        for language in languages:
            path = data_file(root, (f"{XLSUM_NAMES[language]}_{split}.jsonl",), _XLSUM_SOURCE)
            tier = next((tier for tier, codes in ALL_TIERS.items() if language in codes), None)
            extra = {"domain": domain} | ({} if tier is None else {"tier": tier})
            for _, row in read_rows(path, XlsumRow, bad_rows, unique="id"):
                names: dict[str, Any] = {"id": row.id, "language": language, "extra": dict(extra)}
                if domain == TRANSLATION:
                    questions.append(Question(**names, dataset="xlsum_summaries", text=row.summary, answers=()))
                else:
                    questions.append(Question(**names, dataset="xlsum", text=row.text, answers=(row.summary,)))
    return limited(questions, limit, seed=seed)


class CrossThinkRow(Row):
    """A question with its options in its text; its answer names one of them."""

    question: Annotated[Text, pydantic.Field(validation_alias=pydantic.AliasPath("meta_data", "question"))]
    ground_truth: Annotated[Text, pydantic.Field(validation_alias=pydantic.AliasPath("reward_model", "ground_truth"))]


@gin.configurable
@typed
def crossthink_questions(folder: str | None = None, limit: Count | None = None, seed: int = 0) -> list[Question]:
    """Returns Nemotron-CrossThink's questions whose answer is an option's letter, A to J; others are left out."""
    names = [f"Nemotron-CrossThink-QA.{ending}" for ending in ("jsonl", "parquet")]
    names += [f"train_qa{part}" for part in (".jsonl", ".parquet", "-00000-of-00001.parquet")]
    path = data_file(
        dataset_folder("crossthink", folder), names, "https://huggingface.co/datasets/nvidia/Nemotron-CrossThink"
    )
    questions: dict[str, Question] = {}
    with counted_bad_rows() as bad_rows:
        for _, row in read_rows(path, CrossThinkRow, bad_rows):
            text, letter = row.question, option(row.ground_truth)
            if letter is not None:
                key = hashlib.sha256(text.encode()).hexdigest()[:16]  # the rows' own indices repeat
                questions[key] = Question(
                    id=key,
                    dataset="crossthink",
                    language="en",
                    text=text,
                    answers=(letter,),
                    extra={"domain": MULTIPLE_CHOICE},
                )
    if not questions:
        raise UserError(f"no answer in {path} is an option's letter: is it the file of another task?")
    return limited(list(questions.values()), limit, seed=seed)


# --- Instructions with constraints ---

Asked: TypeAlias = tuple[str, Mapping[str, Any]]  # a sentence of the instruction, and its constraint

MIN_KEYWORD = 5  # letters
_WORD = re.compile(rf"[a-z]{{{MIN_KEYWORD},}}")


@gin.configurable
@typed
def constrained_instructions(questions: Sequence[Question], seed: int = 0) -> list[Question]:
    """Returns instructions to write about the subjects of some English texts, with two to four constraints each.

    Keywords are drawn from the text, and at most one constraint of length and one of form is added, so all of them can
    be met at once. Texts of fewer than three keywords are left out. `extra["constraints"]` is as in
    `lcrag.rewards.domains`; quoted words stay as they are in translations, and the keywords are also the `answers`,
    which are not compared with anything.
    """
    made = []
    for question in questions:
        words = list(dict.fromkeys(_WORD.findall(question.text.lower())))
        if len(words) < 3:
            continue
        digest = hashlib.sha256(f"{seed} {question.key}".encode()).digest()
        generator = np.random.default_rng(int.from_bytes(digest[:8]))
        *keywords, absent = (words[place] for place in generator.permutation(len(words))[:3])
        asked: list[Asked] = [
            (f'Use the words "{keywords[0]}" and "{keywords[1]}".', {"kind": "include", "words": keywords})
        ]
        least, most = int(generator.integers(2, 4)), int(generator.integers(4, 7))
        lengths: list[Asked] = [
            (f"Write {least} to {most} sentences.", {"kind": "sentences", "least": least, "most": most}),
            (f"Write at least {20 * least} words.", {"kind": "words", "least": 20 * least}),
            (
                f"Write exactly {least} paragraphs, with a blank line between them.",
                {"kind": "paragraphs", "least": least, "most": least},
            ),
            (f"Write a list of {most} lines that begin with -.", {"kind": "bullets", "least": most, "most": most}),
        ]
        forms: list[Asked] = [
            ("Do not use commas.", {"kind": "no_commas"}),
            ("Give it a title between << and >>.", {"kind": "title"}),
            ('End with the words "That is all."', {"kind": "ends_with", "text": "That is all."}),
            (f'Use the word "{keywords[0]}" twice or more.', {"kind": "frequency", "word": keywords[0], "least": 2}),
        ]
        without: list[Asked] = [(f'Do not use the word "{absent}".', {"kind": "exclude", "words": [absent]})]
        groups = (lengths, forms, without)
        for place in sorted(generator.permutation(len(groups))[: generator.integers(1, 4)].tolist()):
            asked.append(groups[place][int(generator.integers(len(groups[place])))])
        made.append(
            Question(
                id=question.id,
                dataset=f"instructions_{question.dataset}",
                language="en",
                text=" ".join(["Write a short text about this:", question.text, *(sentence for sentence, _ in asked)]),
                answers=tuple(keywords),
                extra={
                    "domain": INSTRUCTION_FOLLOWING,
                    "constraints": [dict(constraint) for _, constraint in asked],
                },
            )
        )
    if not made:
        raise UserError(f"none of {len(questions)} texts has three words of {MIN_KEYWORD} letters or more: give others")
    return made
