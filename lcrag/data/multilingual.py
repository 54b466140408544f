"""Published questions in many languages: MKQA, XOR-TyDi QA, XQuAD, MGSM and Global-MMLU.

MKQA (Longpre et al., 2021: https://arxiv.org/abs/2007.15207): 10,000 English questions, translated with their answers
into 25 languages. XOR-TyDi QA (Asai et al., 2021: https://arxiv.org/abs/2010.11856): questions that native speakers
asked in seven languages, each in its original language only. XQuAD (Artetxe et al., 2020:
https://arxiv.org/abs/1910.11856): 1,190 questions with their 240 paragraphs, translated by people into eleven
languages, so it provides questions for coupled groups and a small corpus with known gold passages.

The answers of two test sets are a number or a letter. MGSM (Shi et al., 2023: https://arxiv.org/abs/2210.03057): 250
word problems of GSM8K's test set, translated by people into ten languages, in files with a problem and its answer per
line; line n is the same problem in every language. Global-MMLU (Singh et al., 2024: https://arxiv.org/abs/2412.03304):
MMLU's four-option questions in 42 languages, a folder per language with the hub's Parquet files (or its export's), or
`test.csv` or `test.jsonl` with the same columns.
"""

import hashlib
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import gin
import pydantic

from lcrag.data.questions import (
    LCRL_LANGUAGES,
    MATHEMATICS,
    MULTIPLE_CHOICE,
    XOR_TYDI_TEST,
    Question,
    distinct_answers,
    in_every_language,
    known_languages,
    limited,
    records_fingerprint,
    seeded_order,
    take_split,
    tier_of,
    with_question_mark,
)
from lcrag.data.rows import (
    Row,
    Text,
    at_least_one,
    counted_bad_rows,
    data_file,
    dataset_folder,
    read_lines,
    read_rows,
    read_squad,
    usable,
)
from lcrag.errors import Count, UserError, lookup, typed
from lcrag.files import cache_folder
from lcrag.retrieval import Collections
from lcrag.retrieval.collections import KEPT, kept_collections
from lcrag.retrieval.encoder import named_encoder
from lcrag.rewards.text import is_visible

MKQA_FILE = "mkqa.jsonl.gz"
MKQA_SOURCE = "https://github.com/apple/ml-mkqa/raw/main/dataset/mkqa.jsonl.gz"
# All its languages except the two in traditional Chinese.
MKQA_LANGUAGES = (*LCRL_LANGUAGES, *"da he hu km ms nl no pl sv tr vi".split())
_MKQA_CODES = {"zh": "zh_cn"}  # our code -> MKQA's, where they differ: simplified Chinese of the mainland
_UNANSWERED = ("unanswerable", "long_answer")


class MkqaAnswer(Row):
    """A golden answer; `text` is null for questions without a short answer."""

    type: Literal[
        "binary", "date", "entity", "long_answer", "number", "number_with_unit", "short_phrase", "unanswerable"
    ]
    text: Annotated[str, pydantic.AfterValidator(lambda text: usable(text) if text.strip() else "")] | None = None
    aliases: list[str | None] | None = None


class MkqaRow(Row):
    """One line of the file. Ids are signed 64-bit integers, half of them negative."""

    example_id: Annotated[int, pydantic.Field(ge=-(2**63), lt=2**63)]
    queries: dict[str, Text]
    answers: dict[str, list[MkqaAnswer]]

    def texts(self, language: str) -> tuple[str, ...]:
        """The golden answers in a language, each followed by its aliases; empty if one has no short text."""
        answers = self.answers[_MKQA_CODES.get(language, language)]
        if any(answer.type in _UNANSWERED or not answer.text for answer in answers):
            return ()
        return distinct_answers(text for answer in answers for text in (answer.text, *(answer.aliases or ())) if text)


@gin.configurable
@typed
def mkqa_questions(
    split: str,
    languages: Sequence[str] = LCRL_LANGUAGES,
    folder: str | None = None,
    file: str = MKQA_FILE,
    test: int = 2000,
    validation: int = 500,
    train: int = 1000,
    seed: int = 0,
    answered_in: Sequence[str] = LCRL_LANGUAGES,
) -> list[Question]:
    """Returns the questions of a split of MKQA with all language versions adjacent.

    MKQA has no official splits. LcRL (Section 4.1) uses 1,000 questions for training and 2,000 for testing without
    listing them; here the seed chooses them. Fewer training questions are a subset of more, and the test split does not
    depend on the other sizes. A question is in the same split in every language. A question without a short answer in
    some language (unanswerable, or answered by a long passage) is dropped in all. As in Table 4, whose 2,000 test
    questions leave 16,601 = 13 x 1,277, those of the test split are counted before that, all others after it.

    Args:
      split: train, validation, test, or all.
      test: Number of questions of the test split, those without a short answer included.
      validation, train: Number of questions of these splits.
      answered_in: Languages in which a question must have a short answer, whether or not it is asked in them.
    """
    path = data_file(dataset_folder("mkqa", folder), (file,), MKQA_SOURCE)
    wanted = tuple(dict.fromkeys(known_languages((*answered_in, *languages), MKQA_LANGUAGES)))
    rows: dict[str, MkqaRow] = {}  # by id, in the file's order; each has all wanted languages, answered or not
    with counted_bad_rows() as bad_rows:
        for line, row in read_rows(path, MkqaRow, bad_rows, unique="example_id"):
            contents: dict[str, Mapping[str, object]] = {"queries": row.queries, "answers": row.answers}
            fields = ((name, _MKQA_CODES.get(language, language)) for language in wanted for name in contents)
            if missing := [f"{name}.{code}" for name, code in fields if code not in contents[name]]:
                bad_rows.add(path, line, missing[0], "field required")
            else:
                rows[str(row.example_id)] = row
    texts = {key: {language: row.texts(language) for language in wanted} for key, row in rows.items()}
    usable = [key for key, of_row in texts.items() if all(of_row[language] for language in answered_in)]
    sizes, what = {"validation": validation, "train": train}, "questions of mkqa"
    if split != "all":
        tested = take_split(rows, "test", {"test": test}, seed=seed, what=what)
        usable, what = [key for key in usable if (key in set(tested)) == (split == "test")], f"untested {what}"
    chosen = seeded_order(usable, seed) if split == "test" else take_split(usable, split, sizes, seed=seed, what=what)
    questions = []
    for key in chosen:
        if not all(texts[key][language] for language in languages):
            continue
        for language in languages:
            code = _MKQA_CODES.get(language, language)
            text, extra = rows[key].queries[code], {"answer_type": rows[key].answers[code][0].type}
            names = {"id": key, "dataset": "mkqa", "language": language, "text": with_question_mark(text)}
            questions.append(Question(**names, answers=texts[key][language], extra=extra))
    return questions


XOR_TYDI_LANGUAGES = ("en", *XOR_TYDI_TEST)
# XOR-Full's files, whose answers are in the question's language.
_XOR_FILES = {"train": "xor_train_full.jsonl", "test": "xor_dev_full_v1_1.jsonl"}
_XOR_SOURCE = "https://nlp.cs.washington.edu/xorqa/XORQA_site/data/"
# TyDi QA's gold passage task, on which XOR-TyDi QA is based and which has the English questions.
_TYDI_FILES = {"train": "tydiqa-goldp-v1.1-train.json", "test": "tydiqa-goldp-v1.1-dev.json"}
_TYDI_SOURCE = "https://storage.googleapis.com/tydiqa/v1.1/"
_TYDI_ENGLISH = "english-"  # prefix of the ids of English questions


class XorRow(Row):
    id: Text
    question: Text
    answers: Annotated[list[str], pydantic.BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
    lang: Text


@gin.configurable
@typed
def xor_tydi_questions(
    split: str,
    languages: Sequence[str] = XOR_TYDI_TEST,
    folder: str | None = None,
    train: int | None = 1000,
    limit: Count | None = None,
    seed: int = 0,
) -> list[Question]:
    """Returns the questions of a split of XOR-TyDi QA, language after language, each in its original language only.

    As in LcRL (Table 4), the training split has `train` questions of each language and the test split is the whole
    validation set.

    Args:
      split: train or test.
      train: Training questions per language; None: all.
      limit: Maximum number of questions per language in each split; the seed selects them.
    """
    name, tydi_name = lookup(_XOR_FILES, split, "xor_tydi split"), _TYDI_FILES[split]
    languages = known_languages(languages, XOR_TYDI_LANGUAGES, "xor_tydi")
    root = dataset_folder("xor_tydi", folder)
    by_language: dict[str, dict[str, Question]] = {code: {} for code in languages}  # id -> question

    def keep(code: str, key: str, text: str, answers: tuple[str, ...]) -> None:
        text = with_question_mark(text)
        by_language[code][key] = Question(id=key, dataset="xor_tydi", language=code, text=text, answers=answers)

    with counted_bad_rows() as bad_rows:
        if set(languages) - {"en"}:
            path = data_file(root, (name,), _XOR_SOURCE + name)
            for _, row in read_rows(path, XorRow, bad_rows, unique="id"):
                if (answers := distinct_answers(row.answers)) and row.lang in by_language:
                    keep(row.lang, row.id, row.question, answers)
        if "en" in languages:
            for _, asked in read_squad(data_file(root, (tydi_name,), _TYDI_SOURCE + tydi_name)):
                for question in asked:
                    if question.id.startswith(_TYDI_ENGLISH):
                        keep("en", question.id, question.question, question.texts)
    questions = []
    for code, of_language in by_language.items():
        chosen: Sequence[str] = list(of_language)
        if split == "train" and train is not None:
            what = f"training questions of xor_tydi in {code}"
            chosen = take_split(of_language, "train", {"train": train}, seed=seed, what=what)
        questions += [of_language[key] for key in chosen]
    return limited(questions, limit, seed=seed)


XQUAD_LANGUAGES = ("en", "ar", "de", "el", "es", "hi", "ro", "ru", "th", "tr", "vi", "zh")
_XQUAD_SOURCE = "https://github.com/google-deepmind/xquad/raw/master/"


def xquad_file(folder: pathlib.Path, language: str) -> pathlib.Path:
    """Returns the file of a language: `xquad.<language>.json` or XQuAD-R's `<language>.json`, plain or gzipped."""
    known_languages([language], XQUAD_LANGUAGES, "xquad")
    name = f"xquad.{language}.json"
    return data_file(folder, (name, f"{language}.json"), _XQUAD_SOURCE + name)


@gin.configurable
@typed
def xquad_questions(
    split: str,
    languages: Sequence[str] = XQUAD_LANGUAGES,
    folder: str | None = None,
    test_articles: int = 12,
    validation_articles: int = 0,
    held: Mapping[str, float] | None = None,
    limit: Count | None = None,
    seed: int = 0,
) -> list[Question]:
    """Returns the questions of a split of XQuAD with all language versions adjacent.

    `extra["passage"]` is the id of the paragraph. XQuAD is a test set without splits; here a quarter of the 48 articles
    is the test split, so no paragraph of a test question answers a training question. A question that is missing in one
    language is dropped in all.

    Args:
      split: train, validation, test, or all.
      test_articles: Articles of the test split; `validation_articles` likewise.
      held: Of `xquad_collections`, for `extra["native_holds"]`: whether the collection of the question's language holds
        its paragraph.
      limit: Maximum number of questions, each in all languages; the seed selects them.
    """
    if held is not None:
        _check_held(held, languages)
    root = dataset_folder("xquad", folder)
    versions: list[dict[str, Question]] = []  # of each language, by id
    for language in languages:
        versions.append({})
        for passage, asked in read_squad(xquad_file(root, language)):
            extra: dict[str, Any] = {"passage": passage.id}
            if held is not None:
                extra |= {"native_holds": language in xquad_holders(passage.id, held)}
            for row in asked:
                names = {"id": row.id, "dataset": "xquad", "language": language}
                text = with_question_mark(row.question)
                versions[-1][row.id] = Question(**names, text=text, answers=row.texts, extra=dict(extra))

    def of_articles(ids: list[str]) -> list[str]:
        article = {key: versions[0][key].extra["passage"].rpartition("/")[0] for key in ids}
        sizes = {"test": test_articles, "validation": validation_articles}
        sizes["train"] = max(0, len({*article.values()}) - sum(sizes.values()))
        chosen = set(take_split(dict.fromkeys(article.values()), split, sizes, seed=seed, what="articles of xquad"))
        return [key for key in ids if article[key] in chosen]

    return limited(in_every_language(versions, of_articles), limit, seed=seed)


HOME = "home"


def xquad_holders(passage: str, held: Mapping[str, float]) -> set[str]:
    """Returns the languages whose collections hold a paragraph; see `xquad_collections`.

    The draws depend on the names of paragraph and language only, so questions and collections agree in every run.
    """
    languages = [language for language in held if language != HOME]
    home = min(languages, key=lambda language: _draw(f"home of {passage}/{language}"))
    return {code for code in languages if _draw(f"{passage}/{code}") < held[HOME if code == home else code]}


def _draw(key: str) -> float:
    """A number in [0, 1) from a hash; a checksum's would depend on each other for keys that differ in one place."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:6]) / 2**48


def _check_held(held: Mapping[str, float], languages: Sequence[str]) -> None:
    if missing := sorted({HOME, *languages} - held.keys()):
        raise UserError(f"the probabilities to hold a paragraph of xquad, {dict(held)}, lack {', '.join(missing)}")
    if wrong := [name for name, share in held.items() if not 0 <= share <= 1]:
        raise UserError(f"the probability to hold a paragraph of xquad of {wrong[0]} is {held[wrong[0]]}: use 0 to 1")


@gin.configurable
@typed
def xquad_collections(
    languages: Sequence[str] = XQUAD_LANGUAGES,
    folder: str | None = None,
    encoder: str | None = None,
    held: Mapping[str, float] | None = None,
) -> Collections:
    """Opens collections of XQuAD's paragraphs, one per language; built on first use and kept in the user's cache.

    With every paragraph in every language a second search never pays. `held` makes collections like those of real
    languages, each of which covers most of what belongs to it and a part of the rest: every paragraph has a home, one
    of the languages, and is in each collection with the probability that `held` gives.

    Args:
      held: Language -> the probability that its collection holds a paragraph whose home is another language; "home":
        that of the home's collection. {"home": 0.9, "en": 0.7, "es": 0.5, "de": 0.5}. None: all hold everything.
    """
    if held is not None:
        _check_held(held, languages)
    opened, root = named_encoder(encoder, "xquad_collections.encoder"), dataset_folder("xquad", folder)
    passages = {code: [passage for passage, _ in read_squad(xquad_file(root, code))] for code in languages}
    if held is not None:
        for language, all_of_it in passages.items():
            passages[language] = [passage for passage in all_of_it if language in xquad_holders(passage.id, held)]
    contents = records_fingerprint(passage for language in sorted(languages) for passage in passages[language])
    root = cache_folder() / KEPT / f"xquad-{contents}-{opened.fingerprint()}"
    return kept_collections(root, opened, languages, passages.__getitem__)


MGSM_LANGUAGES = ("en", "bn", "de", "es", "fr", "ja", "ru", "sw", "te", "th", "zh")
_MGSM_SOURCE = "https://github.com/google-research/url-nlp/raw/main/mgsm/"
# As Translate-R1 reports them (section 6.7).
MGSM_TIERS: Mapping[str, tuple[str, ...]] = {
    "high": ("en", "bn", "de", "es", "fr", "ja", "ru", "th", "zh"),
    "low": ("sw", "te"),
}
_MGSM_ANSWER = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?|-?\d+(?:\.\d+)?")


@gin.configurable
@typed
def mgsm_questions(
    languages: Sequence[str] = MGSM_LANGUAGES,
    folder: str | None = None,
    split: str = "all",
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
) -> list[Question]:
    """Returns the problems of MGSM with all language versions adjacent; a problem's id is its line number, from 1.

    Thousands separators are removed from answers; the original spelling is an alias. A problem that is missing in one
    language is dropped in all.

    Args:
      split: Name of a split of `sizes`, or "all".
      sizes: Split -> its number of problems, chosen by the seed: MGSM itself is a test set.
    """
    languages = known_languages(languages, MGSM_LANGUAGES, "mgsm")
    root = dataset_folder("mgsm", folder)
    versions = []
    with counted_bad_rows() as bad_rows:
        for language in languages:
            name = f"mgsm_{language}.tsv"
            path = data_file(root, (name,), _MGSM_SOURCE + name)
            version: dict[str, Question] = {}
            # The file is no table: it quotes nothing, and texts may begin with a quote.
            for number, line in read_lines(path, bad_rows):
                text, _, answer = (part.strip() for part in line.rpartition("\t"))
                if not is_visible(text) or "\t" in text:
                    bad_rows.add(path, number, "", "expected a problem, a tab and its answer")
                elif not _MGSM_ANSWER.fullmatch(answer):
                    bad_rows.add(path, number, "answer", f"expected a number, not {answer!r}")
                else:
                    names = {"id": str(number), "dataset": "mgsm", "language": language, "text": text}
                    answers = tuple(dict.fromkeys((answer.replace(",", ""), answer)))
                    extra = {"domain": MATHEMATICS, "tier": tier_of(language, MGSM_TIERS)}
                    version[names["id"]] = Question(**names, answers=answers, extra=extra)
            versions.append(dict(at_least_one(path, version.items(), bad_rows)))
    what = "problems of mgsm"
    return in_every_language(versions, lambda lines: take_split(lines, split, sizes or {}, seed=seed, what=what))


_GLOBAL_MMLU_SOURCE = "https://huggingface.co/datasets/CohereLabs/Global-MMLU"
# Our choice for languages without a tier in Translate-R1: low-tier languages are those with little text in web crawls.
GLOBAL_MMLU_TIERS: Mapping[str, tuple[str, ...]] = {
    "high": tuple("ar bn cs de el en es fa fil fr he hi id it ja ko lt ms nl pl pt ro ru sr sv tr uk vi zh".split()),
    "low": tuple("am ha ig ky mg ne ny si sn so sw te yo".split()),
}
GLOBAL_MMLU_LANGUAGES = tuple(sorted(code for languages in GLOBAL_MMLU_TIERS.values() for code in languages))


class MmluRow(Row):
    """A question with four options; first revisions have no `subject_category`."""

    sample_id: Text
    subject: Text
    subject_category: str | None = None
    question: Text
    option_a: Text
    option_b: Text
    option_c: Text
    option_d: Text
    answer: Annotated[Literal["A", "B", "C", "D"], pydantic.BeforeValidator(lambda value: str(value).strip())]


@gin.configurable
@typed
def global_mmlu_questions(
    split: Literal["test", "dev"] = "test",
    languages: Sequence[str] = GLOBAL_MMLU_LANGUAGES,
    folder: str | None = None,
    limit: Count | None = None,
    seed: int = 0,
) -> list[Question]:
    """Returns the questions of a split with all language versions adjacent; the answer is the letter of an option.

    A question that is missing in one language is dropped in all. `extra["type"]` is the subject's category.

    Args:
      split: test (14,042 questions) or dev (285).
      folder: Folder that holds the languages' folders; None: `$LCRAG_DATA/global_mmlu`.
      limit: Maximum number of questions, the same ones in all languages; the seed selects them.
    """
    languages = known_languages(languages, GLOBAL_MMLU_LANGUAGES, "global_mmlu")
    root = dataset_folder("global_mmlu", folder)
    names = [f"{split}-00000-of-00001.parquet", f"{split}/0000.parquet"]
    names += [f"{split}.{ending}" for ending in ("parquet", "csv", "jsonl")]
    versions = []
    with counted_bad_rows() as bad_rows:
        for language in languages:
            path = data_file(root / language, names, _GLOBAL_MMLU_SOURCE)
            tier, version = tier_of(language, GLOBAL_MMLU_TIERS), {}
            for _, row in read_rows(path, MmluRow, bad_rows, unique="sample_id"):
                options = (row.option_a, row.option_b, row.option_c, row.option_d)
                category = {"type": row.subject_category} if row.subject_category else {}
                version[row.sample_id] = Question(
                    id=row.sample_id,
                    dataset="global_mmlu",
                    language=language,
                    text="\n".join([row.question, *map("{}. {}".format, "ABCD", options)]),
                    answers=(row.answer,),
                    extra={"domain": MULTIPLE_CHOICE, "tier": tier, "subject": row.subject} | category,
                )
            versions.append(version)
    return in_every_language(versions, lambda ids: seeded_order(ids, seed)[:limit])
