"""What is to be filled: places of a domain in a language, and the sources that may fill them."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from lcrag.data.batches import Coupled, coupled
from lcrag.data.languages import language_of
from lcrag.data.questions import Question
from lcrag.data.seeded_order import seeded_order
from lcrag.errors import UserError
from lcrag.methods.translate_r1.pipeline.domains import DOMAINS, TRANSLATION, Domain, domain_of
from lcrag.methods.translate_r1.pipeline.sources import unfit_source
from lcrag.methods.translate_r1.pipeline.stages import SOURCE, Attempt
from lcrag.methods.translate_r1.pipeline.thresholds import Thresholds


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationQuota:
    """Places that are filled from one pool.

    Attributes:
      domain: The domain.
      languages: A place is filled by a source that passes in all of them.
      places: How many are wanted.
    """

    domain: Domain
    languages: tuple[str, ...]
    places: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sources:
    """What passed the source filter.

    Attributes:
      pools: Domain -> its questions, each with the versions that there are, the source first; in the order in which
        they are tried, the same in every language, so that languages mostly share their questions.
      removed: What the filter removed.
    """

    pools: Mapping[str, Sequence[Coupled]]
    removed: Sequence[Attempt]


def sift(questions: Iterable[Question], thresholds: Thresholds, *, preferred: str, seed: int) -> Sources:
    """Stage 1 of all questions.

    Args:
      questions: Of any domains and languages, one version of each question or several.
      thresholds: The numbers that it compares with.
      preferred: Language of the version that is the source, where there are several.
      seed: Of the order.

    Raises:
      UserError: a question has a domain that there is not, or none is left.
    """
    pools: dict[str, dict[str, Coupled]] = collections.defaultdict(dict)
    removed = []
    for versions in coupled(questions):
        source, *others = sorted(versions, key=lambda version: version.language != preferred)
        domain = domain_of(source)
        if cause := unfit_source(source, domain, thresholds):
            attempt = Attempt(question=source, domain=domain, language=source.language, stage=SOURCE, cause=cause)
            removed.append(attempt)
        else:
            pools[domain.name][source.coupling] = (source, *others)
    if not pools:
        raise UserError(
            f"no question is left to translate: the source filter removed all {len(removed)}, the first as"
            f" {removed[0].cause}; give it other questions or set Thresholds"
        )
    ordered = {name: [pool[key] for key in seeded_order(pool, seed)] for name, pool in pools.items()}
    return Sources(pools=ordered, removed=removed)


def lanes_of(
    sources: Sources, languages: Sequence[str], places: int | Mapping[str, int], *, together: bool
) -> list[TranslationQuota]:
    """The lanes of every domain that has sources.

    Texts of the domain `translation` are not put into a language that some of them are written in.

    Args:
      sources: What may fill them.
      languages: Codes of the languages wanted.
      places: Of a language in a domain: one number for all, or each language's.
      together: Whether a question is kept only in all languages, and not in each for itself.

    Raises:
      UserError: a language is unknown, twice there or without places, or languages together have different numbers.
    """
    wanted = _places(languages, places)
    lanes = []
    for domain in (DOMAINS[name] for name in DOMAINS if name in sources.pools):
        written = {versions[0].language for versions in sources.pools[domain.name]} if domain is TRANSLATION else ()
        codes = [code for code in languages if code not in written]
        if together and codes:
            if len({wanted[code] for code in codes}) > 1:
                raise UserError("translations.places has several numbers, but all languages go together: give one")
            lanes.append(TranslationQuota(domain=domain, languages=tuple(codes), places=wanted[codes[0]]))
        elif not together:
            lanes += [TranslationQuota(domain=domain, languages=(code,), places=wanted[code]) for code in codes]
    return lanes


def to_translate(lanes: Iterable[TranslationQuota], sources: Sources) -> list[str]:
    """The languages that some source of their lanes has no version in, in the order of the lanes."""
    return list(
        dict.fromkeys(
            code
            for lane in lanes
            for code in lane.languages
            if not all(_is_in(versions, code) for versions in sources.pools[lane.domain.name])
        )
    )


def _is_in(versions: Coupled, language: str) -> bool:
    return any(version.language == language for version in versions)


def _places(languages: Sequence[str], places: int | Mapping[str, int]) -> dict[str, int]:
    if not languages or len(set(languages)) < len(languages):
        raise UserError(f"translations.languages is {' '.join(languages) or 'empty'}: name each language once")
    for code in languages:
        language_of(code)
        if not isinstance(places, int) and code not in places:
            raise UserError(f"translations.places has no number for {code}: name how many questions it gets")
    wanted = {code: places if isinstance(places, int) else places[code] for code in languages}
    if fewest := next((code for code, count in wanted.items() if count < 1), None):
        raise UserError(f"translations.places is {wanted[fewest]} for {fewest}: give it a value of 1 or more")
    return wanted
