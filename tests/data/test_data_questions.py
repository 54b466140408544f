"""Languages and tiers; seeded orders, splits and shares; the batch of step n is a function of (seed, n)."""

import collections
import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrag.data import questions as data
from lcrag.data.constructed import CONSTRUCTED
from lcrag.errors import UserError

CODES = ("en", "fi", "ja")
QUESTIONS = [
    data.Question(id=str(number), dataset="d", language=language, text="?", answers=("a",))
    for number in range(40)
    for language in CODES
]
SIZES = {"test": 2, "validation": 1, "train": 3}
keys = st.lists(st.text(max_size=5), unique=True, min_size=6, max_size=30)
sizes = st.integers(1, 40).flatmap(lambda count: st.tuples(st.just(count), st.integers(1, count)))


@given(keys, st.integers(0, 5), st.randoms())
def test_the_order_depends_on_names_and_seed_only(names, seed, random):
    order = data.seeded_order(names, seed)
    assert (sorted(order), data.seeded_order(random.sample(names, len(names)), seed)) == (sorted(names), order)
    assert data.seeded_order(names[1:], seed) == [name for name in order if name != names[0]]


@given(keys, st.integers(0, 5))
def test_splits_are_apart_and_smaller_training_sets_are_nested(names, seed):
    def split(name, **sizes):
        return data.take_split(names, name, SIZES | sizes, seed=seed, what="names")

    parts = [set(split(name)) for name in SIZES]
    assert ([len(part) for part in parts], len(set.union(*parts))) == ([2, 1, 3], 6)
    assert split("train", train=2) == split("train")[:2]
    assert split("test", train=1) == split("test")
    assert set(split("all")) == set(names)


@pytest.mark.parametrize(
    "call",
    [
        lambda: data.take_split("abcdefghi", "dev", SIZES, seed=0, what="names"),
        lambda: data.take_split("abcde", "test", SIZES, seed=0, what="names"),
        lambda: data.take_split("abcde", "test", {"test": -1}, seed=0, what="names"),
        lambda: data.rows_of_step(40, seed=0, step=0, size=41),
    ],
)
def test_mistakes(call):
    with pytest.raises(UserError):
        call()


def test_a_share_of_keys_is_about_as_large_as_wanted_and_part_of_a_larger_one():
    keys = [str(number) for number in range(2000)]
    none, small, large, whole = (
        {key for key in keys if data.in_share(key, share, 1)} for share in (0.0, 0.2, 0.6, 1.0)
    )
    assert (len(none), len(whole)) == (0, len(keys))
    assert small < large
    assert (len(small) / len(keys), len(large) / len(keys)) == pytest.approx((0.2, 0.6), abs=0.05)
    assert small != {key for key in keys if data.in_share(key, 0.2, seed=2)}


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 3))
def test_fewer_questions_are_part_of_more_and_keep_all_their_languages(one, other, seed):
    for take in (data.limited, lambda questions, count, seed: data.share_of(questions, count / 40, seed=seed)):
        small, large = (take(QUESTIONS, count, seed=seed) for count in sorted((one, other)))
        assert {question.id for question in small} <= {question.id for question in large}
        assert len(large) == 3 * max(one, other)
        assert large == [question for question in QUESTIONS if question in large], "in the order in which they came"
        assert take(QUESTIONS, 40, seed=seed) == QUESTIONS
        assert take(QUESTIONS, 20, seed=seed) != take(QUESTIONS, 20, seed=seed + 1)


def test_a_limit_holds_for_each_language():
    fewer = [question for question in QUESTIONS if question.language != "ja" or int(question.id) < 2]
    languages = [question.language for question in data.limited(fewer, 5, seed=0)]
    assert [languages.count(code) for code in CODES] == [5, 5, 2]
    assert data.limited(fewer, None, seed=0) == fewer


def test_a_limit_counts_the_questions_of_data_sets_that_share_ids():
    kept = data.limited(QUESTIONS, 5, seed=1)
    assert {question.id for question in kept} == set(data.seeded_order(map(str, range(40)), 1)[:5])
    both = [*QUESTIONS, *(dataclasses.replace(question, dataset="e") for question in QUESTIONS)]
    languages = [question.language for question in data.limited(both, 5, seed=1)]
    assert [languages.count(code) for code in CODES] == [5, 5, 5]


@given(sizes, st.integers(0, 3), st.integers(0, 3))
def test_every_row_comes_once_an_epoch_and_none_twice_in_a_step(size_of_table_and_step, seed, epoch):
    count, size = size_of_table_and_step
    first, last = epoch * count // size, -(-(epoch + 1) * count // size)
    steps = [data.rows_of_step(count, seed=seed, step=step, size=size) for step in range(first, last + 1)]
    skipped = epoch * count - first * size
    assert sorted(np.concatenate(steps)[skipped : skipped + count]) == list(range(count))
    assert all(len(set(rows)) == size for rows in steps)


def test_a_step_holds_all_versions_of_its_questions():
    table = data.coupled(QUESTIONS)
    for step in range(5):
        chosen = data.groups_of_step(table, seed=0, step=step, couplings=2)
        assert [[question.language for question in group] for group in chosen] == [[*CODES]] * 2
        assert len({question.coupling for group in chosen for question in group}) == 2
        assert chosen != data.groups_of_step(table, seed=1, step=step, couplings=2)


def test_languages_by_their_codes():
    assert {language.relative for language in data.LANGUAGES.values()} <= data.LANGUAGES.keys() - {"en"}
    assert (data.language_of("fi").name, data.known_languages(None)) == ("Finnish", data.LCRL_LANGUAGES)
    for call in (lambda: data.language_of("xx"), lambda: data.known_languages(["en", "xx"])):
        with pytest.raises(UserError, match="'xx'"):
            call()


def of_tier(number, language, domain="mathematics"):
    extra = {"domain": domain}
    return data.Question(id=str(number), dataset="d", language=language, text="?", answers=("1",), extra=extra)


def test_the_paper_s_tiers_and_rates():
    assert [len(languages) for languages in data.ALL_TIERS.values()] == [6, 12, 4, 2, 3, 6]
    codes = {code for languages in data.ALL_TIERS.values() for code in languages}
    assert (len(codes), set(data.QUOTAS)) == (33, set(data.TIERS))
    assert codes <= set(data.LANGUAGES)
    assert [data.tier_of(code) for code in ("en", "ha", "tw", "qki", "ko", "mi")] == list(data.ALL_TIERS)
    assert data.with_tiers([of_tier(1, "fi")], {"known": ("fi",)})[0].tier == "known"
    for call in (lambda: data.tier_of("fi"), lambda: data.tiered_questions([of_tier(1, "ko")], weights=data.QUOTAS)):
        with pytest.raises(UserError):
            call()


def test_a_table_in_inverse_proportion():
    table = data.with_tiers([of_tier(n, code) for n in range(400) for code in ("en", "fr", "ha", "bm")])
    kept = data.tiered_questions(table, weights=data.QUOTAS, seed=3)
    assert data.tiered_questions(table) == table
    counts = collections.Counter(question.language for question in kept)
    assert counts == {"en": 50, "fr": 50, "ha": 400, "bm": 300}
    assert kept == [question for question in table if question in kept]
    ids = {code: {question.id for question in kept if question.language == code} for code in counts}
    assert ids["en"] == ids["fr"] < ids["bm"] < ids["ha"]
    assert data.tiered_questions(table, weights=data.QUOTAS, seed=4) != kept
    # A language with few questions makes the others fewer in its domain alone.
    table = [of_tier(n, code) for code, count in (("en", 100), ("ha", 80)) for n in range(count)]
    kept = data.tiered_questions(table + [of_tier(n, "en", "multiple_choice") for n in range(30)], weights=data.QUOTAS)
    counts = collections.Counter((question.domain, question.language) for question in kept)
    assert counts == {("mathematics", "en"): 10, ("mathematics", "ha"): 80, ("multiple_choice", "en"): 30}


@pytest.mark.parametrize("language", data.LANGUAGES)
def test_every_natural_language_of_the_data_has_a_script_that_its_name_is_written_in(language):
    if language in CONSTRUCTED:
        assert not data.scripts_of(language)
    else:
        written = {data.script_of(letter) for letter in data.LANGUAGES[language].endonym if letter.isalpha()} - {""}
        assert written <= data.scripts_of(language)


@pytest.mark.parametrize(
    ("code", "scripts", "everywhere"),
    [
        ("sr", "Cyrl", "Cyrl Latn"),
        ("sr-Latn", "Latn", "Latn"),
        ("zh_cn", "Hani", "Hani"),
        ("zh-Hant-TW", "Hani", "Hani"),
        ("pt-br", "Latn", "Latn"),
        ("zh-min-nan", "Hani Latn", "Hani Latn"),
        ("ms", "Latn", "Arab Latn"),
        ("qki", "", ""),
        ("xx", "", ""),
    ],
)
def test_the_scripts_of_codes_with_more_subtags(code, scripts, everywhere):
    assert data.scripts_of(code) == {*scripts.split()} and data.scripts_of(code, everywhere=True) == {
        *everywhere.split()
    }


@pytest.mark.parametrize(
    "text", ["Who?", "Who？", "من؟", "ማን፧", "Ποιος;", "Ποιος\u037e", "ո՞վ՞", "Who?\u200f", "Who? ", "ឈ្មោះអ្វី ?"]
)
def test_a_question_mark_of_any_script_is_enough(text):
    assert (data.with_question_mark(text), data.with_question_mark("who ")) == (text.strip(), "who?")


def asked(id, language, text, *answers, dataset="own"):
    return data.Question(id=id, dataset=dataset, language=language, text=text, answers=answers)


TRAINED = [
    asked("1", "en", "Where is Chad?", "in Africa", "Africa"),
    asked("2", "fi", "Missä on Tšad?", "Afrikassa", "Africa"),
    asked("", "", "A line of a prompt whose language is not known", dataset=""),
]


@pytest.mark.parametrize(
    ("held_out", "found"),
    [
        (asked("9", "en", "where is  CHAD", "here", dataset="other"), True),  # its words, whatever its id and data set
        (asked("9", "de", "Where is Chad?", "here", dataset="other"), False),  # in another language
        (asked("2", "ru", "Где Чад?", "в Африке", "AFRICA"), True),  # another language of a trained question
        (asked("2", "ru", "Где Чад?", "в Африке"), False),  # an id that two files have by chance
        (asked("2", "ru", "Где Чад?", "Africa", dataset="other"), False),
        (asked("9", "sw", "a line of a prompt, whose language is not known!", "x"), True),
    ],
)
def test_questions_that_are_trained_on_too_are_found(held_out, found):
    assert data.overlap(TRAINED, [held_out, asked("7", "en", "Another one?", "Africa")]) == [held_out] * found


@given(st.lists(st.sampled_from(QUESTIONS), max_size=9), st.lists(st.sampled_from(QUESTIONS), max_size=9))
def test_what_both_ask_overlaps_and_nothing_overlaps_nothing(trained, held_out):
    assert [each for each in held_out if each in trained and each not in data.overlap(trained, held_out)] == []
    assert data.overlap([], held_out) == data.overlap(trained, []) == []
