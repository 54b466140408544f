"""Questions by domain and tier, as gin builds them: MGSM, Global-MMLU, constructed languages, weights of tiers."""

from collections.abc import Mapping, Sequence

import gin

from lcrag.app.composition.datasets import counted_bad_rows
from lcrag.data import constructed, global_mmlu, mgsm, tiers
from lcrag.data.files import dataset_folder
from lcrag.data.questions import Question
from lcrag.errors import UserError
from lcrag.models.completers import CompletionJudge
from lcrag.models.translators import LookUpTranslator

gin.external_configurable(CompletionJudge, module="lcrag.episodes")
gin.external_configurable(LookUpTranslator, module="lcrag.data")


@gin.configurable
def mgsm_questions(
    languages: Sequence[str] = mgsm.LANGUAGES,
    folder: str | None = None,
    tiers: Mapping[str, Sequence[str]] = mgsm.TIERS,
) -> list[Question]:
    """MGSM, which is a test set; see `lcrag.data.mgsm.mgsm_questions`.

    Args:
      languages: Languages to ask in.
      folder: Where the files are; None: `$LCRAG_DATA/mgsm`.
      tiers: Tier -> its languages.
    """
    found = dataset_folder(mgsm.DATASET, folder)
    with counted_bad_rows() as bad_rows:
        return mgsm.mgsm_questions(found, languages, tiers=tiers, bad_rows=bad_rows)


@gin.configurable
def global_mmlu_questions(
    split: str = "test",
    languages: Sequence[str] = global_mmlu.LANGUAGES,
    folder: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    tiers: Mapping[str, Sequence[str]] = global_mmlu.TIERS,
) -> list[Question]:
    """Global-MMLU; see `lcrag.data.global_mmlu.global_mmlu_questions`.

    Args:
      split: test or dev.
      languages: Languages to ask in.
      folder: Where the languages' folders are; None: `$LCRAG_DATA/global_mmlu`.
      limit: At most so many questions, the same in all languages.
      seed: Of their choice.
      tiers: Tier -> its languages.
    """
    found = dataset_folder(global_mmlu.DATASET, folder)
    with counted_bad_rows() as bad_rows:
        return global_mmlu.global_mmlu_questions(
            found, split, languages, limit=limit, seed=seed, tiers=tiers, bad_rows=bad_rows
        )


@gin.configurable
def english_vocabulary(questions: Sequence[Question] = (), file: str | None = None) -> list[str]:
    """The English words that constructed languages have words for.

    The questions asked in constructed languages and the translator of them must have the same.

    Args:
      questions: English questions, whose words are taken; those in other languages are left out.
      file: A file with a word a line, whose words are taken as well.

    Raises:
      UserError: there are none.
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
    """English questions in constructed languages; see `lcrag.data.constructed`.

    Args:
      questions: Questions, of which the English ones are taken.
      vocabulary: The English words that the languages have words for.
      languages: Codes of the constructed languages.
      tier: Their tier.
    """
    english = [each for each in questions if each.language == constructed.ENGLISH]
    versions = constructed.constructed_questions(english, languages, vocabulary)
    return tiers.with_tiers(versions, {tier: languages})


@gin.configurable
def tiered_questions(
    questions: Sequence[Question],
    languages_of_tiers: Mapping[str, Sequence[str]] = tiers.ALL_TIERS,
    weights: Mapping[str, float] | None = None,
    seed: int = 0,
) -> list[Question]:
    """Questions that know their tiers, and if there are weights, in proportion to them; see `lcrag.data.tiers`.

    Args:
      questions: Questions of any languages.
      languages_of_tiers: Tier -> its languages.
      weights: Tier -> weight of each of its languages in each domain; None: all questions.
      seed: Of the choice where some are left out.
    """
    found = tiers.with_tiers(questions, languages_of_tiers)
    return found if weights is None else tiers.weighted_by_tier(found, weights, seed=seed)
