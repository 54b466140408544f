"""The data sets that lie in files, as gin builds them; bad rows are treated alike in all of them (`BadRows.skip`)."""

import contextlib
import pathlib
import sys
from collections.abc import Iterator, Sequence

import gin

from lcrag.app.composition.components import cache_folder, configured_encoder, kept_collections, resolved_folder
from lcrag.data import jsonl_questions as jsonl
from lcrag.data import mkqa, xor_tydi, xquad
from lcrag.data.batches import limited
from lcrag.data.files import data_file, dataset_folder
from lcrag.data.fingerprints import records_fingerprint
from lcrag.data.languages import LCRL_LANGUAGES, XOR_TYDI_TEST
from lcrag.data.questions import Question
from lcrag.data.rows import BadRows
from lcrag.methods.globalrag.golden_plans import golden_plans
from lcrag.models import EndpointTranslator
from lcrag.retrieval import Collections

configured_bad_rows = gin.external_configurable(BadRows, module="lcrag.data")
gin.external_configurable(EndpointTranslator, module="lcrag.data")


@contextlib.contextmanager
def counted_bad_rows() -> Iterator[BadRows]:
    """What becomes of bad rows, as configured; at the end, says on standard error how many were left out."""
    bad_rows = configured_bad_rows()
    yield bad_rows
    if summary := bad_rows.summary():
        print(f"lcrag: {summary}", file=sys.stderr)


@gin.configurable
def mkqa_questions(
    split: str,
    languages: Sequence[str] = LCRL_LANGUAGES,
    folder: str | None = None,
    file: str = mkqa.FILE,
    test: int = 2000,
    validation: int = 500,
    train: int = 1000,
    seed: int = 0,
    answered_in: Sequence[str] = LCRL_LANGUAGES,
) -> list[Question]:
    """MKQA; see `lcrag.data.mkqa.mkqa_questions`.

    Args:
      split: train, validation, test, or all.
      languages: Languages to ask in.
      folder: Where the file is; None: `$LCRAG_DATA/mkqa`.
      file: Its name.
      test: Questions of the test split.
      validation: Questions of the validation split.
      train: Questions of the training split.
      seed: Of the split.
      answered_in: Languages in which a question must have a short answer, whichever are asked.
    """
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
def xor_tydi_questions(
    split: str,
    languages: Sequence[str] = XOR_TYDI_TEST,
    folder: str | None = None,
    train: int | None = 1000,
    limit: int | None = None,
    seed: int = 0,
) -> list[Question]:
    """XOR-TyDi QA, each question in its own language only; see `lcrag.data.xor_tydi.xor_tydi_questions`.

    Args:
      split: train or test.
      languages: Languages to take.
      folder: Where the files are; None: `$LCRAG_DATA/xor_tydi`.
      train: Training questions of a language; None: all.
      limit: At most so many questions of each language, of either split.
      seed: Of their choice.
    """
    with counted_bad_rows() as bad_rows:
        found = dataset_folder(xor_tydi.DATASET, folder)
        asked = xor_tydi.xor_tydi_questions(found, split, languages, train=train, seed=seed, bad_rows=bad_rows)
    return limited(asked, limit, seed=seed)


@gin.configurable
def xquad_questions(
    split: str,
    languages: Sequence[str] = xquad.LANGUAGES,
    folder: str | None = None,
    test_articles: int = 12,
    limit: int | None = None,
    seed: int = 0,
) -> list[Question]:
    """XQuAD; see `lcrag.data.xquad.xquad_questions`.

    Args:
      split: train, test, or all.
      languages: Languages to ask in.
      folder: Where the files are; None: `$LCRAG_DATA/xquad`.
      test_articles: Articles of the test split.
      limit: At most so many questions, each in all languages.
      seed: Of the split, and of which questions these are.
    """
    with counted_bad_rows() as bad_rows:
        found = dataset_folder(xquad.DATASET, folder)
        options = {"test_articles": test_articles, "seed": seed}
        asked = xquad.xquad_questions(found, split, languages, **options, bad_rows=bad_rows)
    return limited(asked, limit, seed=seed)


@gin.configurable
def xquad_collections(
    languages: Sequence[str] = xquad.LANGUAGES,
    folder: str | None = None,
    encoder: str = "atlas/encoder",
    kept: str | None = None,
) -> Collections:
    """XQuAD's own paragraphs, one collection a language, built on first use and kept in the user's cache.

    Args:
      languages: Languages of the collections.
      folder: Where the files are; None: `$LCRAG_DATA/xquad`.
      encoder: Folder of the encoder, or the name of one that ships with the package.
      kept: Where the collections are kept; None: a folder of the cache named by their content and the encoder's.
    """
    opened, found = configured_encoder(resolved_folder(encoder)), dataset_folder(xquad.DATASET, folder)
    with counted_bad_rows() as bad_rows:
        passages = {language: xquad.xquad_passages(found, language, bad_rows) for language in languages}
    content = records_fingerprint(passage for language in languages for passage in passages[language])
    root = pathlib.Path(kept) if kept else cache_folder() / f"xquad-{content}-{opened.fingerprint()}"
    return kept_collections(root, opened, languages, passages.__getitem__)


@gin.configurable
def jsonl_questions(
    files: Sequence[str], dataset: str = "jsonl", languages: Sequence[str] | None = None
) -> list[Question]:
    """Questions of one's own; see `lcrag.data.jsonl_questions`.

    Args:
      files: JSON lines, plain or gzipped.
      dataset: Name of the data set, in results.
      languages: Those to keep; None: all.
    """
    with counted_bad_rows() as bad_rows:
        return jsonl.jsonl_questions(
            files, dataset=dataset, languages=languages, bad_rows=bad_rows, check_extra=golden_plans
        )
