"""The English question sets, as gin builds them, and collections of their own paragraphs."""

import pathlib
from collections.abc import Sequence

import gin

from lcrag.app.composition.components import cache_folder, configured_encoder, kept_collections, resolved_folder
from lcrag.app.composition.datasets import counted_bad_rows
from lcrag.data.english.asked import LANGUAGE
from lcrag.data.english.sets import first_questions, passages_of, question_set, questions_of
from lcrag.data.files import dataset_folder
from lcrag.data.fingerprints import records_fingerprint
from lcrag.data.questions import Question
from lcrag.data.rows import BadRows
from lcrag.errors import UserError
from lcrag.methods.globalrag.golden_plans import with_decomposition
from lcrag.retrieval import Collections, Passage


@gin.configurable
def english_questions(
    dataset: str,
    split: str,
    folder: str | None = None,
    file: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    golden_plans: bool = False,
) -> list[Question]:
    """The questions of an English set's split; see `lcrag.data.english.sets`.

    Args:
      dataset: hotpotqa, 2wikimultihopqa, musique, bamboogle, wikihop, nq_open, triviaqa or popqa.
      split: train, validation or test, as the set has them.
      folder: Where its files are; None: `$LCRAG_DATA/<dataset>`.
      file: Name of the split's file where it is none of the known ones.
      limit: At most so many questions, chosen by the seed.
      seed: Of the choice.
      golden_plans: Whether each question gets its set's own decomposition as its golden plan (musique).

    Raises:
      UserError: there is no such set, split or file, a row cannot be used, or golden plans are wanted of a set without
        decompositions.
    """
    chosen = question_set(dataset)
    found = dataset_folder(dataset, folder, binding="english_questions.folder")
    with counted_bad_rows() as bad_rows:
        asked = chosen.read(
            chosen.file(found, split, file), bad_rows, add_plan=with_decomposition if golden_plans else None
        )
    return questions_of(first_questions(asked, limit, seed))


@gin.configurable
def english_collections(
    datasets: Sequence[str],
    splits: Sequence[str] = ("test",),
    folder: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    encoder: str = "atlas/encoder",
    kept: str | None = None,
) -> Collections:
    """The paragraphs that come with some sets' questions as one English collection, built on first use and kept.

    Args:
      datasets: Sets whose rows have paragraphs: hotpotqa, 2wikimultihopqa, musique or wikihop.
      splits: Splits whose paragraphs are taken; a split that a set does not have is left out.
      folder: The folder that holds the sets' folders; None: `$LCRAG_DATA`.
      limit: The paragraphs of at most so many questions of each split, the same that `english_questions` takes.
      seed: Of the choice.
      encoder: Folder of the encoder, or the name of one that ships with the package.
      kept: Where the collection is kept; None: a folder of the cache named by its content and the encoder's.
    """
    opened = configured_encoder(resolved_folder(encoder))
    with counted_bad_rows() as bad_rows:
        found = [_passages(name, splits, folder, limit, seed, bad_rows) for name in datasets]
    passages = list({passage.id: passage for own in found for passage in own}.values())
    content = records_fingerprint(passages)
    root = pathlib.Path(kept) if kept else cache_folder() / f"english-{content}-{opened.fingerprint()}"
    return kept_collections(root, opened, (LANGUAGE,), lambda _: passages)


@gin.configurable
def several_questions(parts: Sequence[Sequence[Question]]) -> list[Question]:
    """The questions of several data sets, one after the other.

    Args:
      parts: The questions of each.
    """
    return [question for part in parts for question in part]


def _passages(
    name: str, splits: Sequence[str], folder: str | None, limit: int | None, seed: int, bad_rows: BadRows
) -> list[Passage]:
    chosen = question_set(name)
    own = str(pathlib.Path(folder) / name) if folder else None
    found = dataset_folder(name, own, binding="english_collections.folder")
    passages: list[Passage] = []
    for split in filter(chosen.files.__contains__, splits):
        asked = chosen.read(chosen.file(found, split), bad_rows)
        passages += passages_of(first_questions(asked, limit, seed))
    if not passages:
        raise UserError(
            f"{name} comes without paragraphs in {', '.join(splits)}: search Wikipedia for its questions instead, with"
            " --gin_file=retrieval/service.gin"
        )
    return passages
