"""Collections of the paragraphs that come with data sets, built on first use and kept in the user's cache."""

import pathlib
from collections.abc import Sequence

import gin

from lcrag.data.english import LANGUAGE, QUESTION_SETS, first_questions
from lcrag.data.multilingual import XQUAD_LANGUAGES, xquad_passages
from lcrag.data.rows import counted_bad_rows, dataset_folder, records_fingerprint
from lcrag.errors import UserError, lookup, typed
from lcrag.retrieval import Collections, Passage
from lcrag.retrieval.collections import cache_folder, kept_collections
from lcrag.retrieval.encoder import named_encoder


@gin.configurable
@typed
def xquad_collections(
    languages: Sequence[str] = XQUAD_LANGUAGES,
    folder: str | None = None,
    encoder: str | None = None,
    kept: str | None = None,
) -> Collections:
    """Opens collections of XQuAD's paragraphs, one per language; built on first use and kept in the user's cache.

    Args:
      folder: Folder of XQuAD's files; None: `$LCRAG_DATA/xquad`.
      kept: Folder of the built collections; None: a folder of the cache, named by the fingerprints of the passages
        and the encoder.
    """
    opened, root = named_encoder(encoder, "xquad_collections.encoder"), dataset_folder("xquad", folder)
    with counted_bad_rows() as bad_rows:
        passages = {language: xquad_passages(root, language, bad_rows) for language in languages}
    content = records_fingerprint(passage for language in languages for passage in passages[language])
    root = pathlib.Path(kept) if kept else cache_folder() / f"xquad-{content}-{opened.fingerprint()}"
    return kept_collections(root, opened, languages, passages.__getitem__)


@gin.configurable
@typed
def english_collections(
    datasets: Sequence[str],
    splits: Sequence[str] = ("test",),
    folder: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    encoder: str | None = None,
    kept: str | None = None,
) -> Collections:
    """Opens one English collection of the paragraphs in data sets' rows, built on first use and kept in the cache.

    Args:
      datasets: Sets whose rows have paragraphs: hotpotqa, 2wikimultihopqa, musique or wikihop.
      splits: Splits whose paragraphs are used; splits that a set does not have are ignored.
      folder: The folder that holds the sets' folders; None: `$LCRAG_DATA`.
      limit: Maximum number of questions per split whose paragraphs are used; `english_questions` selects the same ones.
      kept: As for `xquad_collections`.
    """
    opened = named_encoder(encoder, "english_collections.encoder")
    with counted_bad_rows() as bad_rows:
        by_id: dict[str, Passage] = {}
        for name in datasets:
            chosen = lookup(QUESTION_SETS, name, "English question set")
            place = pathlib.Path(folder) / name if folder else None
            root = dataset_folder(name, place, binding="english_collections.folder")
            of_set: list[Passage] = []
            for split in filter(chosen.files.__contains__, splits):
                questions = first_questions(chosen.read(chosen.file(root, split), bad_rows), limit, seed)
                of_set += [passage for question in questions for passage in question.passages]
            if not of_set:
                raise UserError(
                    f"{name} comes without paragraphs in {', '.join(splits)}: search Wikipedia for its questions"
                    " instead, with --gin_file=retrieval/service.gin"
                )
            by_id |= {passage.id: passage for passage in of_set}
    passages = list(by_id.values())
    content = records_fingerprint(passages)
    root = pathlib.Path(kept) if kept else cache_folder() / f"english-{content}-{opened.fingerprint()}"
    return kept_collections(root, opened, (LANGUAGE,), lambda _: passages)
