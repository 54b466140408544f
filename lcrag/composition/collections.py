"""Collections to search: those of the atlas and of data sets, and those of search services."""

import pathlib
from collections.abc import Callable, Mapping, Sequence

import gin

from lcrag.atlas import World
from lcrag.atlas.world import atlas_world
from lcrag.composition.components import configured_encoder, resolved_folder
from lcrag.data.english import LANGUAGE, first_questions, passages_of, question_set
from lcrag.data.files import dataset_folder, records_fingerprint
from lcrag.data.languages import LCRL_LANGUAGES
from lcrag.data.multilingual import XQUAD_LANGUAGES, xquad_passages
from lcrag.data.rows import BadRows, counted_bad_rows
from lcrag.errors import UserError
from lcrag.limits import Count, Seed
from lcrag.retrieval import Collections, Encoder, IndexSettings, Passage
from lcrag.retrieval.collections import cache_folder, kept_collections
from lcrag.retrieval.remote import (
    USUAL_PATIENCE,
    GoogleCustomSearch,
    LcragService,
    Patience,
    Qdrant,
    QdrantBackend,
    RemoteCollections,
    SearchR1Servers,
    SerpApi,
    WebEngine,
    WebSearch,
    key_from,
)


def named_encoder(folder: str | None, binding: str) -> Encoder:
    """Returns the encoder in a folder; nothing is downloaded.

    Raises:
      UserError: no folder is named, or it does not exist.
    """
    if folder is None:
        raise UserError(
            f"{binding} names no encoder: give the folder of one that you have with --gin.ENCODER='\"e5-base-v2\"'"
            ' ("atlas/encoder" knows the built-in world only)'
        )
    path = resolved_folder(folder)
    if not path.is_dir():
        raise UserError(
            f"{binding} names the encoder {folder}, but there is no such folder: download it, and name its folder with"
            " --gin.ENCODER"
        )
    return configured_encoder(path)


@gin.configurable
def atlas_collections(
    folder: str | None = None, encoder: str = "atlas/encoder", world: Callable[[], World] = atlas_world
) -> Collections:
    """Opens the atlas's collections, one per language; they are built on first use and kept in the user's cache.

    Args:
      folder: Folder of the collections; None: a folder of the cache, named by the fingerprints of the world and the
        encoder.
      encoder: Folder of the encoder, or the name of one that ships with the package.
      world: Builds the atlas.
    """
    atlas, opened = world(), configured_encoder(resolved_folder(encoder))
    root = pathlib.Path(folder) if folder else cache_folder() / f"{atlas.fingerprint()}-{opened.fingerprint()}"
    return kept_collections(root, opened, LCRL_LANGUAGES, atlas.passages)


@gin.configurable
def xquad_collections(
    languages: Sequence[str] = XQUAD_LANGUAGES,
    folder: str | None = None,
    encoder: str | None = None,
    kept: str | None = None,
) -> Collections:
    """Opens collections of XQuAD's paragraphs, one per language; built on first use and kept in the user's cache.

    Args:
      languages: Languages of the collections.
      folder: Folder of XQuAD's files; None: `$LCRAG_DATA/xquad`.
      encoder: Folder of the encoder.
      kept: Folder of the built collections; None: a folder of the cache, named by the fingerprints of the passages
        and the encoder.
    """
    opened, found = named_encoder(encoder, "xquad_collections.encoder"), dataset_folder("xquad", folder)
    with counted_bad_rows() as bad_rows:
        passages = {language: xquad_passages(found, language, bad_rows) for language in languages}
    content = records_fingerprint(passage for language in languages for passage in passages[language])
    root = pathlib.Path(kept) if kept else cache_folder() / f"xquad-{content}-{opened.fingerprint()}"
    return kept_collections(root, opened, languages, passages.__getitem__)


@gin.configurable
def english_collections(
    datasets: Sequence[str],
    splits: Sequence[str] = ("test",),
    folder: str | None = None,
    limit: Count | None = None,
    seed: Seed = 0,
    encoder: str | None = None,
    kept: str | None = None,
) -> Collections:
    """Opens one English collection of the paragraphs in data sets' rows, built on first use and kept in the cache.

    Args:
      datasets: Sets whose rows have paragraphs: hotpotqa, 2wikimultihopqa, musique or wikihop.
      splits: Splits whose paragraphs are used; splits that a set does not have are ignored.
      folder: The folder that holds the sets' folders; None: `$LCRAG_DATA`.
      limit: Maximum number of questions per split whose paragraphs are used; `english_questions` selects the same ones.
      seed: Seed of the selection.
      encoder: Folder of the encoder.
      kept: Folder of the built collection; None: a folder of the cache, named by the fingerprints of the passages and
        the encoder.
    """
    opened = named_encoder(encoder, "english_collections.encoder")
    with counted_bad_rows() as bad_rows:
        found = [_passages(name, splits, folder, limit, seed, bad_rows) for name in datasets]
    passages = list({passage.id: passage for own in found for passage in own}.values())
    content = records_fingerprint(passages)
    root = pathlib.Path(kept) if kept else cache_folder() / f"english-{content}-{opened.fingerprint()}"
    return kept_collections(root, opened, (LANGUAGE,), lambda _: passages)


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


for _settings in (IndexSettings, Patience):
    gin.register(_settings, module="lcrag.retrieval")


@gin.configurable
def remote_collections(
    url: str,
    languages: Sequence[str] | None = None,
    patience: Patience = USUAL_PATIENCE,
) -> RemoteCollections:
    """Returns the collections of `lcrag serve` at `url` (`http://HOST:PORT`); None for `languages` means all."""
    return RemoteCollections(LcragService(url, languages, patience))


gin.external_configurable(Qdrant, module="lcrag.retrieval")


@gin.configurable
def qdrant_collections(
    engine: Qdrant, encoder: str | None = None, languages: Sequence[str] | None = None
) -> RemoteCollections:
    """Returns the collections that `lcrag index` has stored in Qdrant; `encoder` is the folder of their encoder."""
    return RemoteCollections(QdrantBackend(engine, named_encoder(encoder, "qdrant_collections.encoder"), languages))


@gin.configurable
def search_r1_collections(
    urls: Mapping[str, str],
    patience: Patience = USUAL_PATIENCE,
) -> RemoteCollections:
    """Returns the collections of Search-R1-style servers; `urls` maps each language to an address."""
    return RemoteCollections(SearchR1Servers(urls, patience))


@gin.configurable
def web_collections(
    engine: WebEngine,
    languages: Sequence[str],
    patience: Patience = USUAL_PATIENCE,
) -> RemoteCollections:
    """Returns a web search engine, `@serp_api()` or `@google_custom_search()`, as the collection of every language."""
    return RemoteCollections(WebSearch(engine, languages, patience))


@gin.configurable
def serp_api(key_variable: str = "SERPAPI_API_KEY", engine: str = "google", url: str = SerpApi.url) -> SerpApi:
    """Returns a SerpAPI client whose key is read from an environment variable.

    Raises:
      UserError: the variable is not set.
    """
    return SerpApi(key=key_from(key_variable), engine=engine, url=url)


@gin.configurable
def google_custom_search(
    key_variable: str = "GOOGLE_API_KEY", engine_variable: str = "GOOGLE_CSE_ID", url: str = GoogleCustomSearch.url
) -> GoogleCustomSearch:
    """Returns a client of Google's Custom Search JSON API; its key and engine id are environment variables.

    Raises:
      UserError: one of the variables is not set.
    """
    return GoogleCustomSearch(key=key_from(key_variable), engine_id=key_from(engine_variable), url=url)
