"""Questions of data sets as gin configurables; `BadRows.skip` says what all of them do with bad rows."""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence

import gin

from lcrag.composition.stand_ins import replaceable
from lcrag.data import constructed, global_mmlu, mgsm, mkqa, tiers, xor_tydi, xquad
from lcrag.data import jsonl_questions as jsonl
from lcrag.data.batches import limited
from lcrag.data.english.sets import first_questions, question_set, questions_of, with_golden_passages
from lcrag.data.files import data_file, dataset_folder
from lcrag.data.languages import LCRL_LANGUAGES, XOR_TYDI_TEST
from lcrag.data.questions import Question
from lcrag.data.rows import BadRows
from lcrag.errors import UserError
from lcrag.files import local_files
from lcrag.limits import Amount, Count, NonNegative, Seed
from lcrag.methods.globalrag.golden_plans import golden_plans, with_decomposition, with_own_plan

configured_bad_rows = gin.external_configurable(BadRows, module="lcrag.data")


@contextlib.contextmanager
def counted_bad_rows() -> Iterator[BadRows]:
    """Yields the configured `BadRows`; at the end, reports the number of skipped rows on standard error."""
    bad_rows = configured_bad_rows()
    yield bad_rows
    if summary := bad_rows.summary():
        print(f"lcrag: {summary}", file=sys.stderr)


@gin.configurable
@replaceable("questions")
def mkqa_questions(
    split: str,
    languages: Sequence[str] = LCRL_LANGUAGES,
    folder: str | None = None,
    file: str = mkqa.FILE,
    test: Amount = 2000,
    validation: Amount = 500,
    train: Amount = 1000,
    seed: Seed = 0,
    answered_in: Sequence[str] = LCRL_LANGUAGES,
) -> list[Question]:
    """Reads MKQA from `folder`, by default `$LCRAG_DATA/mkqa`; see `lcrag.data.mkqa.mkqa_questions`."""
    path = data_file(dataset_folder(mkqa.DATASET, folder), (file,), mkqa.SOURCE)
    with counted_bad_rows() as bad_rows:
        return mkqa.mkqa_questions(
            path,
            split,
            languages,
            test=test,
            validation=validation,
            train=train,
            seed=seed,
            answered_in=answered_in,
            bad_rows=bad_rows,
        )


@gin.configurable
@replaceable("questions")
def xor_tydi_questions(
    split: str,
    languages: Sequence[str] = XOR_TYDI_TEST,
    folder: str | None = None,
    train: Amount | None = 1000,
    limit: Count | None = None,
    seed: Seed = 0,
) -> list[Question]:
    """Reads XOR-TyDi QA from `folder`, by default `$LCRAG_DATA/xor_tydi`; see `lcrag.data.xor_tydi.xor_tydi_questions`.

    `limit` is the maximum number of questions per language in each split; `seed` selects them.
    """
    with counted_bad_rows() as bad_rows:
        found = dataset_folder(xor_tydi.DATASET, folder)
        asked = xor_tydi.xor_tydi_questions(found, split, languages, train=train, seed=seed, bad_rows=bad_rows)
    return limited(asked, limit, seed=seed)


@gin.configurable
@replaceable("questions")
def xquad_questions(
    split: str,
    languages: Sequence[str] = xquad.LANGUAGES,
    folder: str | None = None,
    test_articles: Amount = 12,
    limit: Count | None = None,
    seed: Seed = 0,
) -> list[Question]:
    """Reads XQuAD from `folder`, by default `$LCRAG_DATA/xquad`; see `lcrag.data.xquad.xquad_questions`.

    `limit` is the maximum number of questions, each in all languages; `seed` selects them.
    """
    with counted_bad_rows() as bad_rows:
        found = dataset_folder(xquad.DATASET, folder)
        options = {"test_articles": test_articles, "seed": seed}
        asked = xquad.xquad_questions(found, split, languages, **options, bad_rows=bad_rows)
    return limited(asked, limit, seed=seed)


@gin.configurable
@replaceable("questions")
def jsonl_questions(
    files: Sequence[str], dataset: str = "jsonl", languages: Sequence[str] | None = None
) -> list[Question]:
    """Reads questions from JSON Lines files, also gzipped or in object storage; see `lcrag.data.jsonl_questions`."""
    with counted_bad_rows() as bad_rows:
        local = [str(local_files(file)) for file in files]
        return jsonl.jsonl_questions(
            local, dataset=dataset, languages=languages, bad_rows=bad_rows, check_extra=golden_plans
        )


@gin.configurable
@replaceable("questions")
def english_questions(
    dataset: str,
    split: str,
    folder: str | None = None,
    file: str | None = None,
    limit: Count | None = None,
    seed: Seed = 0,
    golden_plans: bool = False,
    golden_passages: bool = False,
) -> list[Question]:
    """Reads a split of an English question-answering data set; see `lcrag.data.english.sets`.

    Args:
      dataset: hotpotqa, 2wikimultihopqa, musique, bamboogle, wikihop, nq_open, triviaqa or popqa.
      split: train, validation or test; not every set has all three.
      folder: Folder of the set's files; None: `$LCRAG_DATA/<dataset>`.
      file: Name of the split's file, if it differs from the known names.
      limit: Maximum number of questions, selected by the seed.
      seed: Seed of the selection.
      golden_plans: Whether to use the set's question decompositions as golden plans (musique).
      golden_passages: Whether to add the texts of the supporting paragraphs to each question (sets with paragraphs).

    Raises:
      UserError: there is no such set, split or file, a row cannot be used, or `golden_plans` is set for a data set
        without decompositions.
    """
    chosen = question_set(dataset)
    found = dataset_folder(dataset, folder, binding="english_questions.folder")
    with counted_bad_rows() as bad_rows:
        asked = chosen.read(
            chosen.file(found, split, file), bad_rows, add_plan=with_decomposition if golden_plans else None
        )
    wanted = first_questions(asked, limit, seed)
    return questions_of(with_golden_passages(wanted) if golden_passages else wanted)


@gin.configurable
def several_questions(parts: Sequence[Sequence[Question]]) -> list[Question]:
    """Returns the concatenated questions of several data sets."""
    return [question for part in parts for question in part]


@gin.configurable
def with_own_plans(questions: Sequence[Question]) -> list[Question]:
    """Gives each question without a golden plan a plan with the question as its only sub-question; see `with_own_plan`.

    Raises:
      UserError: an existing golden plan is invalid.
    """
    try:
        return [with_own_plan(question) for question in questions]
    except ValueError as error:
        raise UserError(f"a golden plan of the questions cannot be used: {error}; correct it in their file") from error


@gin.configurable
@replaceable("questions")
def mgsm_questions(
    languages: Sequence[str] = mgsm.LANGUAGES,
    folder: str | None = None,
    tiers: Mapping[str, Sequence[str]] = mgsm.TIERS,
) -> list[Question]:
    """Reads MGSM, a test set, from `folder`, by default `$LCRAG_DATA/mgsm`; see `lcrag.data.mgsm.mgsm_questions`."""
    found = dataset_folder(mgsm.DATASET, folder)
    with counted_bad_rows() as bad_rows:
        return mgsm.mgsm_questions(found, languages, tiers=tiers, bad_rows=bad_rows)


@gin.configurable
@replaceable("questions")
def global_mmlu_questions(
    split: str = "test",
    languages: Sequence[str] = global_mmlu.LANGUAGES,
    folder: str | None = None,
    limit: Count | None = None,
    seed: Seed = 0,
    tiers: Mapping[str, Sequence[str]] = global_mmlu.TIERS,
) -> list[Question]:
    """Reads Global-MMLU from `folder`, by default `$LCRAG_DATA/global_mmlu`; see `lcrag.data.global_mmlu`."""
    found = dataset_folder(global_mmlu.DATASET, folder)
    with counted_bad_rows() as bad_rows:
        return global_mmlu.global_mmlu_questions(
            found, split, languages, limit=limit, seed=seed, tiers=tiers, bad_rows=bad_rows
        )


@gin.configurable
def english_vocabulary(questions: Sequence[Question] = (), file: str | None = None) -> list[str]:
    """Returns the English words that constructed languages can translate.

    Questions in constructed languages and their translator must use the same vocabulary.

    Args:
      questions: Questions; the words of the English ones are used.
      file: A file with one word per line, in addition to the words of the questions.

    Raises:
      UserError: there are no words.
    """
    words = constructed.vocabulary_of(each.text for each in questions if each.language == constructed.ENGLISH)
    words += constructed.read_word_list(file) if file is not None else []
    if not words:
        raise UserError("english_vocabulary has no words: give it English questions, or a file with a word a line")
    return sorted(set(words))


@gin.configurable
def constructed_questions(
    questions: Sequence[Question],
    vocabulary: Sequence[str],
    languages: Sequence[str] = tuple(constructed.CONSTRUCTED),
    tier: str = "synthetic",
) -> list[Question]:
    """Translates the English questions among `questions` into constructed languages; see `lcrag.data.constructed`."""
    english = [each for each in questions if each.language == constructed.ENGLISH]
    versions = constructed.constructed_questions(english, languages, vocabulary)
    return tiers.with_tiers(versions, {tier: languages})


@gin.configurable
def tiered_questions(
    questions: Sequence[Question],
    languages_of_tiers: Mapping[str, Sequence[str]] = tiers.ALL_TIERS,
    weights: Mapping[str, NonNegative] | None = None,
    seed: Seed = 0,
) -> list[Question]:
    """Adds a tier to each question and, given weights, subsamples the questions by tier; see `lcrag.data.tiers`.

    `weights` maps a tier to the weight of each of its languages within each domain.
    """
    found = tiers.with_tiers(questions, languages_of_tiers)
    return found if weights is None else tiers.weighted_by_tier(found, weights, seed=seed)
