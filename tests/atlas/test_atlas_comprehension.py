"""The comprehension questions: parallel, split without leaks, parsed exactly, and demonstrated without hints."""

import collections
import json

import pytest
from babel.core import get_global

from lcrag.atlas import build_world
from lcrag.atlas.comprehension import (
    LANGUAGES,
    NATURAL,
    SPLITS,
    ComprehensionTasks,
    ComprehensionTranslator,
    Meaning,
    meaning_of,
    sentence_of,
)
from lcrag.data.constructed import CONSTRUCTED
from lcrag.data.questions import MATHEMATICS, MULTIPLE_CHOICE
from lcrag.episodes import TranslationFailure
from lcrag.errors import UserError
from lcrag.methods.translate_r1.oracles import ComprehensionOracle
from lcrag.models.translators import LookUpTranslator


@pytest.fixture(scope="module")
def world():
    return build_world()


@pytest.fixture(scope="module")
def tasks(world):
    return ComprehensionTasks(world)


@pytest.fixture(scope="module")
def by_split(tasks):
    return {split: tasks.questions(split) for split in SPLITS}


@pytest.fixture(scope="module")
def translator(tasks):
    return ComprehensionTranslator(tasks)


def test_every_question_is_asked_in_every_language_and_in_one_split(by_split):
    for questions in by_split.values():
        for place in range(0, len(questions), len(LANGUAGES)):
            versions = questions[place : place + len(LANGUAGES)]
            assert tuple(question.language for question in versions) == LANGUAGES
            assert len({question.answers for question in versions}) == 1
            assert len({question.text for question in versions}) == len(LANGUAGES)
    texts = [{question.text for question in questions} for questions in by_split.values()]
    assert sum(map(len, texts)) == len(set.union(*texts)) == sum(map(len, by_split.values()))


def test_limits_languages_and_domains(tasks, by_split):
    asked = ("fi", "qki")
    few = tasks.questions("train", asked, (MATHEMATICS,), limit=5)
    assert [question.language for question in few] == [*asked] * 5
    sums = [question for question in by_split["train"] if question.domain == MATHEMATICS]
    assert few == [question for question in sums if question.language in asked][:10]

    for change in ({"split": "test"}, {"domains": ("poetry",)}, {"languages": ("de",)}):
        with pytest.raises(UserError):
            tasks.questions(**{"split": "train", **change})


def test_answers_are_those_of_the_story_and_of_the_world(world, by_split):
    sums = {"buy": lambda a, b: a + b, "sell": lambda a, b: a - b, "bags": lambda a, b: a * b}
    zones = {country: own[0] for country, own in get_global("territory_zones").items()}
    for question in by_split["held_out"]:
        words = question.extra["words"]
        [answer] = question.answers
        if question.domain == MATHEMATICS:
            assert int(answer) == sums[question.extra["kind"]](int(words["a"]), int(words["b"])) > 0
        else:
            chosen = words[("first", "second", "third", "fourth")["ABCD".index(answer)]]
            assert chosen == question.extra["value"]
            assert zones[words["country"]].startswith(f"{chosen}/")

    # Letters are equally often right.
    asked = [each for own in by_split.values() for each in own if each.domain == MULTIPLE_CHOICE]
    counts = collections.Counter(question.answers[0] for question in asked)
    assert all(abs(counts[letter] / len(asked) - 0.25) < 0.02 for letter in "ABCD"), counts


def test_a_constructed_question_shows_nothing_of_an_english_one(by_split):
    """No word is left, so only single letters can be understood: the numbers are words, too."""
    pairs = collections.defaultdict(dict)
    for question in by_split["held_out"]:
        pairs[question.id][question.language] = question.text
    for versions in pairs.values():
        for code in CONSTRUCTED:
            common = set(versions[code].split()) & set(versions["en"].split())
            assert all(len(word.strip("?:")) == 1 or not word.isascii() for word in common), versions


def test_sentences_are_read_back_and_numbers_take_the_right_form_of_a_russian_noun(by_split):
    for question in by_split["train"]:
        if question.language in NATURAL:
            meaning = meaning_of(question.text, NATURAL)
            assert meaning == Meaning(question.extra["kind"], question.extra["words"])
            assert sentence_of(meaning, question.language) == question.text
    assert sentence_of(Meaning("buy", {"a": "3", "b": "2", "things": "rose"}), "ru").startswith("У меня три розы,")
    assert sentence_of(Meaning("bags", {"a": "4", "b": "5", "things": "lamp"}), "ru") == (
        "У меня четыре сумки, в каждой пять ламп. Сколько всего ламп?"
    )


def test_a_miscopied_word_stays_and_a_miscopied_verb_is_refused():
    meaning = meaning_of("I have fiv cards and buy two. How many cards now?", NATURAL)
    assert meaning == Meaning("buy", {"a": "fiv", "things": "card", "b": "2"})
    assert sentence_of(meaning, "fr") == "J'ai fiv cartes et j'en achète deux. Combien de cartes maintenant ?"
    assert meaning_of("I have five cards and bell two. How many cards now?", NATURAL) is None  # buy or sell
    assert meaning_of("What is the currency code of Chad?", NATURAL) is None
    assert meaning_of("", NATURAL) is None


def test_the_translator_finds_the_language_and_translates_exactly(translator, by_split):
    asked = by_split["held_out"][: 40 * len(LANGUAGES)]
    english = {question.id: question.text for question in asked if question.language == "en"}
    assert translator([question.text for question in asked], None, "en") == [english[q.id] for q in asked]
    for code in LANGUAGES:
        wanted = [question for question in asked if question.language == code]
        assert translator([english[q.id] for q in wanted], "en", code) == [q.text for q in wanted]


def test_a_constructed_text_is_looked_up_word_by_word_and_untranslatable_texts_are_failures(tasks, translator):
    words = LookUpTranslator(tasks.vocabulary)
    [kivari] = words(["How many cards? I have lamps."], "en", "qki")
    assert translator([kivari], None, "en") == ["How many cards? I have lamps."]
    for text, source, target in (
        (kivari, None, "fr"),
        ("Guten Tag.", None, "en"),
        ("Hi", "de", "en"),
        ("Hi", None, "xx"),
    ):
        [failure] = translator([text], source, target)
        assert isinstance(failure, TranslationFailure)


@pytest.fixture(scope="module")
def oracle(tasks):
    return ComprehensionOracle(tasks, calls=0.4)


def test_the_oracle_calls_as_often_in_every_language_with_the_question_as_it_stands(oracle, by_split):
    for language in LANGUAGES:
        asked = [question for question in by_split["demonstrations"] if question.language == language]
        texts = [oracle.next_text(question, []) for question in asked]
        calls = ["<tool_call>" in text for text in texts]
        assert abs(sum(calls) / len(calls) - 0.4) < 0.06
        for question, text in zip(asked, texts, strict=True):
            if text.startswith("<tool_call>"):
                content = json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))
                assert content == {"name": "translate", "arguments": {"text": question.text, "target": "en"}}


def _answered(text, question):
    return text.endswith(f"\\boxed{{{question.answers[0]}}}")


def test_the_oracle_guesses_what_it_does_not_understand(tasks, by_split):
    native = ComprehensionOracle(tasks, calls=0.0)
    right = collections.defaultdict(list)
    for question in by_split["demonstrations"]:
        right[question.tier, question.domain].append(_answered(native.next_text(question, []), question))
    shares = {where: sum(row) / len(row) for where, row in right.items()}
    assert shares["known", MATHEMATICS] == shares["known", MULTIPLE_CHOICE] == 1
    assert 0.45 < shares["half_known", MATHEMATICS] < 0.7
    assert 0.65 < shares["half_known", MULTIPLE_CHOICE] < 0.85
    assert shares["constructed", MATHEMATICS] < 0.15
    assert 0.2 < shares["constructed", MULTIPLE_CHOICE] < 0.3


def test_the_oracle_is_right_once_it_reads_english(oracle, by_split, translator):
    for question in by_split["demonstrations"][:400]:
        [english] = translator([question.text], None, "en")
        turns = [("environment", question.text), ("policy", "..."), ("environment", _response(english))]
        assert _answered(oracle.next_text(question, turns), question)


def _response(text):
    return f"<tool_response>\n{text}\n</tool_response>"
