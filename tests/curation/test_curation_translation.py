"""The parts of the translation pipeline: what each stage removes, what is asked once, how places are filled."""

import asyncio
import collections
import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrag.curation.translation import (
    Ask,
    AskedOnce,
    CompleterModel,
    ExactRendering,
    Judge,
    PromptedRendering,
    Stages,
    Thresholds,
    lanes_of,
    sift,
)
from lcrag.curation.translation.domains import DOMAINS, QUESTION, domain_of
from lcrag.curation.translation.heuristics import defect
from lcrag.curation.translation.options import join_options, split_options
from lcrag.curation.translation.parts import parts_in, parts_of, versions_of, written
from lcrag.curation.translation.patience import TRIED, Patience
from lcrag.curation.translation.prompts import judge_prompt, translation_prompt
from lcrag.curation.translation.recycling import each_of, fill
from lcrag.curation.translation.sources import natural_language_share, unfit_source
from lcrag.curation.translation.verdicts import verdict_in
from lcrag.data.questions import Question
from lcrag.episodes import Completion
from lcrag.errors import UserError

USUAL = Thresholds()
PROBLEM = "Anna has 3 apples and buys 5 more in the old town. How many apples does she have now?"
CHOICE = "Which of these is a fruit of a tree?\nA. an apple\nB. a potato\nC. 12\nD. a stone"


def question(text=PROBLEM, *answers, domain="mathematics", language="en", number=1, **extra):
    named = {"domain": domain} if domain else {}
    return Question(
        id=str(number), dataset="d", language=language, text=text, answers=answers or ("8",), extra=named | extra
    )


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        (PROBLEM, 0.9, 1.0),
        ("It costs $5 and then $10, or ($3)$4.", 0.8, 1.0),  # prices are no formulas
        (r"Solve $x^2 + 3x = \frac{5}{2}$ for x.", 0.0, 0.45),
        (r"\begin{align} a &= b \end{align} so", 0.0, 0.1),
        ("```\nfor i in range(10): print(i)\n``` prints?", 0.0, 0.3),
        ("Вася купил яблоки; сколько их?", 1.0, 1.0),
        ("小明有苹果，一共有多少？", 1.0, 1.0),
        ("12 + 13 * 14", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_the_share_of_natural_language(text, least, most):
    assert least <= natural_language_share(text) <= most


@given(st.text())
def test_the_share_is_a_share(text):
    assert 0 <= natural_language_share(text) <= 1


@pytest.mark.parametrize(
    ("text", "answer", "domain", "cause"),
    [
        (PROBLEM, "8", "mathematics", ""),
        ("a" * 1999, "8", "mathematics", ""),
        ("a" * 2000, "8", "mathematics", "too long"),
        (r"Compute $\int_0^1 x^2 dx + \sum_{k=1}^{10} k$.", "8", "mathematics", "too little natural language"),
        (CHOICE, "A", "multiple_choice", ""),
        (CHOICE.replace("D. a stone", ""), "A", "multiple_choice", "no options A to D"),
        (CHOICE.replace("D. a stone", "D."), "A", "multiple_choice", "no options A to D"),
        (CHOICE, "E", "multiple_choice", "the answer is no option"),
        ("1 + 1 = ?\nA. one\nB. two\nC. three\nD. four", "B", "multiple_choice", "too little natural language"),
    ],
)
def test_the_source_filter(text, answer, domain, cause):
    asked = question(text, answer, domain=domain)
    assert unfit_source(asked, domain_of(asked), USUAL) == cause


def test_options_are_the_last_lines_in_turn():
    options = split_options("A. Smith asks:\nwhich?\n(A) one\n  (B) two\nlines\n(C) 3\n(D) IV")
    assert options.stem == "A. Smith asks:\nwhich?" and options.texts["B"] == "two\nlines"
    assert join_options("Q?", {"A": "x", "B": "y"}, options.marks) == "Q?\n(A) x\n(B) y"
    assert split_options("A or B?") is None


@given(st.lists(st.text(alphabet="xyz ", min_size=1).filter(str.strip), min_size=2, max_size=26))
def test_options_come_back(texts):
    letters = [chr(ord("A") + place) for place in range(len(texts))]
    whole = join_options("which?", dict(zip(letters, texts, strict=True)), {each: f"{each}." for each in letters})
    assert list(split_options(whole).texts.values()) == [text.strip() for text in texts]


def test_what_is_translated_and_what_becomes_of_it():
    choice = question(CHOICE, "A", domain="multiple_choice", tier="high")
    parts = parts_of(choice, domain_of(choice))
    assert list(parts) == ["question", "A", "B", "C", "D"]
    shouted = {key: text.upper() for key, text in parts.items()}
    [version] = versions_of(choice, domain_of(choice), shouted, "am")
    assert version.text.startswith("WHICH OF THESE IS A FRUIT OF A TREE?\nA. AN APPLE\n") and version.answers == ("A",)
    assert version.extra == {
        "domain": "multiple_choice",
        "tier": "low",
        "translated_from": "en",
        "original": CHOICE,
    }
    asked = question("Where is Chad", "in Africa", "1960", domain="")
    parts = parts_of(asked, QUESTION)
    assert parts == {"question": "Where is Chad", "answer 1": "in Africa"}
    [version] = versions_of(asked, QUESTION, {"question": "Missä on Tšad", "answer 1": "Afrikassa"}, "fi")
    assert (version.text, version.answers) == ("Missä on Tšad?", ("Afrikassa", "1960"))
    assert version.coupling == asked.coupling and "tier" not in version.extra


def test_texts_to_translate_go_both_ways():
    text = question("The rain has come.", "unused", domain="translation")
    into, back = versions_of(text, DOMAINS["translation"], {"question": "Sade on tullut."}, "fi")
    assert (into.language, into.text, into.answers) == ("fi", "Sade on tullut.", ("The rain has come.",))
    assert (back.language, back.text, back.answers) == ("en", "The rain has come.", ("Sade on tullut.",))
    assert (into.extra["answer_language"], back.extra["answer_language"]) == ("en", "fi")
    assert {into.id, back.id} == {"1/fi-en", "1/en-fi"}


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("<output> Moi </output>", {"question": "Moi"}),
        ("first <output>no</output> then <OUTPUT>yes</OUTPUT>", {"question": "yes"}),
        ("Moi", None),
        ("<output>Moi", None),
        ("<output> </output>", None),
    ],
)
def test_a_text_in_an_answer(said, found):
    assert parts_in(said, {"question": "Hi"}) == found


@pytest.mark.parametrize(
    ("inside", "usable"),
    [
        ('{"question": "a", "A": "b"}', True),
        ('```json\n{"A": "b", "question": "a"}\n```', True),
        ('{"question": "a"}', False),
        ('{"question": "a", "A": "b", "B": "c"}', False),
        ('{"question": "a", "A": 1}', False),
        ('{"question": "a", "A": " "}', False),
        ('["a", "b"]', False),
        ('{"question": "a", "A": }', False),
        ("a\nA. b", False),
    ],
)
def test_parts_in_an_answer(inside, usable):
    expected = {"question": "a", "A": "b"} if usable else None
    assert parts_in(f"<output>{inside}</output>", {"question": "x", "A": "y"}) == expected


@given(st.dictionaries(st.text(min_size=1), st.text().map(str.strip).filter(bool), min_size=2))
def test_parts_survive_a_prompt(parts):
    if "</output>" not in written(parts).lower():
        assert parts_in(f"<output>{written(parts)}</output>", parts) == parts


@pytest.mark.parametrize(
    ("translation", "cause"),
    [
        ("Annalla on 3 omenaa ja hän ostaa 5 lisää vanhassa kaupungissa. Montako hänellä on nyt?", ""),
        ("la " * 40, "repeats itself"),
        ("Annalla on", "too short"),
        (" ".join(map(str, range(1000, 1080))), "too long"),
        (PROBLEM, "a copy of the source"),
        (PROBLEM.replace("apples", "pears", 1), ""),
    ],
)
def test_heuristics(translation, cause):
    assert defect(translation, PROBLEM, USUAL) == cause


@given(st.text(min_size=1), st.text(min_size=1))
def test_heuristics_always_say_something_of_texts(translation, source):
    cause = defect(translation, source, USUAL)
    assert isinstance(cause, str)
    # A text without white space at its edges, longer than a gram, is a copy of itself or goes in circles.
    if len("".join(source.split())) > 10:
        assert defect(source, source, USUAL) in ("a copy of the source", "repeats itself")


@given(st.text(alphabet="abc", min_size=10, max_size=30), st.integers(4, 8))
def test_what_is_said_over_and_over_is_found(text, times):
    assert defect(text * times, text, USUAL) == "repeats itself"


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("<verdict>SAME</verdict>", "SAME"),
        ("Because ...\n<verdict> different. </verdict>", "DIFFERENT"),
        ("<verdict>SAME</verdict> no: <verdict>DIFFERENT</verdict>", "DIFFERENT"),
        ("**Same**", "SAME"),
        ("They are the SAME.", "neither"),
        ("<verdict>SAME or DIFFERENT</verdict>", "neither"),
        ("<verdict></verdict>", "neither"),
        ("", "neither"),
    ],
)
def test_verdicts(said, verdict):
    assert verdict_in(said) == verdict


def test_prompts_name_the_languages_and_what_stays():
    prompt = translation_prompt({"question": PROBLEM}, DOMAINS["mathematics"].text, "en", "am")
    assert "from English to Amharic" in prompt and "LaTeX" in prompt and "JSON" not in prompt and PROBLEM in prompt
    prompt = translation_prompt(
        parts_of(question(CHOICE, "A"), DOMAINS["multiple_choice"]), DOMAINS["question"].text, "am", "en"
    )
    assert "from Amharic to English" in prompt and "JSON" in prompt and '"C": "12"' in prompt
    prompt = judge_prompt({"question": "a {b}"}, {"question": "c"}, DOMAINS["translation"])
    assert "whether the two mean the same" in prompt and "a {b}" in prompt


class Script:
    """Answers asks by the function given to it, and keeps them."""

    def __init__(self, said):
        self.said, self.asked = said, []

    async def __call__(self, ask):
        self.asked.append(ask)
        return self.said(ask)


def staged(translations, verdicts=("SAME",), asked=None):
    """The attempt of one source, whose translator and judge say these texts in turn."""
    said = {"translator": iter(translations), "judge": iter(verdicts)}
    script = Script(lambda ask: next(said[ask.role]))
    stages = Stages(renderings={"fi": PromptedRendering(script)}, judge=Judge(script), thresholds=USUAL)
    return asyncio.run(stages.attempt(asked or question(), "fi")), script.asked


FINNISH = "<output>Annalla on 3 omenaa ja hän ostaa 5 lisää. Montako omenaa hänellä on nyt?</output>"
BACK = "<output>Anna has 3 apples and buys 5 more in the town. How many apples does she have now?</output>"


@pytest.mark.parametrize(
    ("translations", "verdicts", "stage", "cause", "requests"),
    [
        (("Sorry.",), (), "forward translation", "no output", 1),
        ((f"<output>{PROBLEM}</output>",), (), "heuristics", "a copy of the source", 1),
        ((FINNISH, "Sorry."), (), "back-translation", "no output", 2),
        ((FINNISH, "<output>What?</output>"), (), "back-translation", "low chrF", 2),
        ((FINNISH, BACK), ("DIFFERENT",), "judge", "DIFFERENT", 3),
        ((FINNISH, BACK), ("Hm.", "Hm.", "Hm.", "Hm."), "judge", "neither SAME nor DIFFERENT", 6),
        ((FINNISH, BACK), ("Hm.", "Hm.", "Hm.", "SAME"), "", "", 6),
        ((FINNISH, f"<output>{PROBLEM}</output>"), (), "", "", 2),  # letter by letter: no judge is needed
    ],
)
def test_each_stage_removes_its_kind(translations, verdicts, stage, cause, requests):
    attempt, asked = staged(translations, verdicts)
    assert (attempt.stage, attempt.cause) == (stage, cause) and len(asked) == requests
    numbers = [ask.number for ask in asked if ask.role == "judge"]
    assert numbers == list(range(len(numbers)))


def test_short_texts_may_lose_more_on_the_way():
    close = Thresholds(round_trip=0.95, round_trip_texts=0.6)
    script = Script(lambda ask: FINNISH if "to Finnish" in ask.prompt else BACK if ask.role == "translator" else "SAME")
    stages = Stages(renderings={"fi": PromptedRendering(script)}, judge=Judge(script), thresholds=close)
    assert asyncio.run(stages.attempt(question(), "fi")).cause == "low chrF"
    assert asyncio.run(stages.attempt(question(domain="translation"), "fi")).passed
    assert {ask.max_tokens for ask in script.asked if ask.role == "translator"} == {2048, 512}


@pytest.mark.parametrize(
    "wrong", [{"natural_language": 1.5}, {"copy": -0.1}, {"least_length": 3.0}, {"round_trip_texts": 2.0}]
)
def test_thresholds_that_are_none_are_refused(wrong):
    with pytest.raises(UserError, match=f"Thresholds.{next(iter(wrong))} is"):
        Thresholds(**wrong)


def test_an_exact_translator_needs_no_model():
    def mirrored(texts, source, target):
        return [text[::-1] for text in texts]

    stages = Stages(renderings={"qki": ExactRendering(mirrored)}, judge=Judge(Script(None)), thresholds=USUAL)
    attempt = asyncio.run(stages.attempt(question(), "qki"))
    assert attempt.passed and attempt.translation == {"question": PROBLEM[::-1]} and attempt.similarity == 1.0


def test_a_model_that_never_says_what_is_wanted_ends_the_run():
    patience = Patience("the judge says neither SAME nor DIFFERENT")
    for _ in range(TRIED - 1):
        patience.saw("hm", usable=False)
    with pytest.raises(UserError, match="nor DIFFERENT in 64 answers, it says 'hm': choose another model"):
        patience.saw("hm", usable=False)
    patience = Patience("x")
    patience.saw("SAME", usable=True)
    for _ in range(TRIED):
        patience.saw("hm", usable=False)


@given(
    st.lists(st.booleans(), max_size=60),
    st.integers(1, 8),
    st.integers(1, 5),
    st.integers(1, 9),
    st.randoms(use_true_random=False),
)
def test_places_are_filled_the_same_way_whatever_comes_first(good, places, attempts, width, random):
    async def attempt(item):
        for _ in range(random.randrange(4)):
            await asyncio.sleep(0)
        return good[item]

    def filled(width):
        return asyncio.run(fill(range(len(good)), places, attempts, attempt, bool, width=width))

    tried = filled(width)
    assert tried == filled(1)
    used = [each.place for each in tried if each.result]
    assert len(set(used)) == len(used) and len(tried) <= len(good)  # an item is used once, a place filled once
    by_place = collections.Counter(each.place for each in tried)
    assert all(count <= attempts for count in by_place.values())
    # Nothing is left empty while it has attempts left and there are items.
    empty = [place for place in range(places) if place not in used]
    assert not empty or len(tried) == len(good) or all(by_place[place] == attempts for place in empty)


def test_after_a_failure_nothing_new_is_begun():
    begun = []

    async def do(item):
        begun.append(item)
        await asyncio.sleep(0)
        if item == 3:
            raise UserError("away")

    with pytest.raises(UserError, match="away"):
        asyncio.run(each_of(list(range(100)), do, width=4))
    assert len(begun) < 20


class Counting:
    """A model that counts, and how many of its requests are in flight at most."""

    name, in_flight = "counting", 3

    def __init__(self, failing=()):
        self.failing, self.asked, self.now, self.most = failing, [], 0, 0

    async def say(self, ask):
        self.asked.append(ask.prompt)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.002)
        self.now -= 1
        if ask.prompt in self.failing:
            raise UserError(f"{ask.prompt} fails")
        return ask.prompt.upper()


def ask(prompt, role="translator", number=0):
    return Ask(role=role, prompt=prompt, max_tokens=9, number=number)


def test_what_was_asked_is_not_asked_again():
    model, rows = Counting(), []

    async def asking(answered, prompts):
        async with AskedOnce({"translator": model}, answered, rows.extend) as asked:
            return await asyncio.gather(*(asked(ask(prompt)) for prompt in prompts))

    assert asyncio.run(asking({}, list("abcabc"))) == list("ABCABC")
    assert sorted(model.asked) == list("abc") and model.most == 3
    answered = {row["key"]: row["answer"] for row in rows}
    assert asyncio.run(asking(answered, list("abcd"))) == list("ABCD") and model.asked[3:] == ["d"]
    assert len({ask("a").key("m"), ask("a").key("n"), ask("a", "judge").key("m"), ask("a", number=1).key("m")}) == 4
    with pytest.raises(UserError, match="there is no judge to ask"):
        asyncio.run(AskedOnce({}, {}, rows.extend)(ask("a", "judge")))


def test_what_is_in_flight_when_a_request_fails_is_kept():
    model, rows = Counting(failing=("b",)), []

    async def asking():
        async with AskedOnce({"translator": model}, {}, rows.extend) as asked:
            await each_of(list("abcdefgh"), lambda prompt: asked(ask(prompt)), width=8)

    with pytest.raises(UserError, match="b fails"):
        asyncio.run(asking())
    assert sorted(row["answer"].lower() for row in rows) == sorted(each for each in model.asked if each != "b")
    assert len(model.asked) < 8


def test_rows_are_written_together_and_before_an_answer_is_used():
    written_rows, calls, main = [], [], threading.get_ident()

    def keep(rows):
        assert threading.get_ident() != main
        calls.append(len(rows))
        written_rows.extend(json.loads(json.dumps(rows)))

    async def asking():
        model = Counting()
        model.in_flight = 50
        async with AskedOnce({"translator": model}, {}, keep) as asked:

            async def one(number):
                answer = await asked(ask(str(number)))
                assert answer in [row["answer"] for row in written_rows]

            await asyncio.gather(*map(one, range(50)))

    asyncio.run(asking())
    assert sum(calls) == 50 and len(calls) < 50


def test_a_local_model_is_asked_in_batches():
    batches = []

    def completer(requests):
        batches.append([generation.temperature for _, generation in requests])
        if any("bad" in prompt for prompt, _ in requests):
            raise UserError("a prompt leaves no room")
        return [Completion(text=prompt * 2, finish_reason="eos", tokens=1) for prompt, _ in requests]

    async def saying(*asks):
        model = CompleterModel(completer)
        return await asyncio.gather(*map(model.say, asks), return_exceptions=True)

    assert asyncio.run(saying(*(ask(f"p{n}", number=n % 2) for n in range(9)))) == [f"p{n}" * 2 for n in range(9)]
    assert sum(map(len, batches)) == 9 and len(batches) <= 2 and set(sum(batches, [])) == {0.0, 0.7}
    assert all(isinstance(each, UserError) for each in asyncio.run(saying(ask("bad"), ask("good"))))
    with pytest.raises(UserError, match="CompleterModel.in_flight is 0"):
        CompleterModel(completer, in_flight=0)


def test_sources_are_sifted_and_put_in_one_order_for_all_languages():
    questions = [question(PROBLEM.replace("Anna", f"Anna {n}"), number=n) for n in range(6)]
    questions += [question("1 + 1", number=9), question(CHOICE, "B", domain="multiple_choice", number=10)]
    finnish = question("Anna ostaa omenoita. Montako?", language="fi", number=3)
    sources = sift([finnish, *questions], USUAL, preferred="en", seed=0)
    assert [each.cause for each in sources.removed] == ["too little natural language"]
    assert {name: len(pool) for name, pool in sources.pools.items()} == {"mathematics": 6, "multiple_choice": 1}
    [both] = [each for each in sources.pools["mathematics"] if len(each) == 2]
    assert [each.language for each in both] == ["en", "fi"]
    reverse = sift([*questions[::-1], finnish], USUAL, preferred="en", seed=0)
    assert reverse.pools == sources.pools
    assert sift(questions, USUAL, preferred="en", seed=1).pools != sources.pools
    lanes = lanes_of(sources, ("fi", "am"), {"fi": 2, "am": 5}, together=False)
    assert [(lane.domain.name, *lane.languages, lane.places) for lane in lanes] == [
        ("mathematics", "fi", 2), ("mathematics", "am", 5), ("multiple_choice", "fi", 2), ("multiple_choice", "am", 5)
    ]  # fmt: skip
    [lane, _] = lanes_of(sources, ("fi", "am"), 4, together=True)
    assert (lane.languages, lane.places) == (("fi", "am"), 4)
    texts = sift([question(domain="translation")], USUAL, preferred="en", seed=0)
    assert [lane.languages for lane in lanes_of(texts, ("en", "fi"), 4, together=False)] == [("fi",)]


@pytest.mark.parametrize(
    ("languages", "places", "together", "clue"),
    [
        ((), 1, False, "translations.languages is empty: name each language once"),
        (("fi", "fi"), 1, False, "name each language once"),
        (("xx",), 1, False, "unknown language 'xx'"),
        (("fi",), 0, False, "translations.places is 0 for fi"),
        (("fi", "am"), {"fi": 1}, False, "translations.places has no number for am"),
        (("fi", "am"), {"fi": 1, "am": 2}, True, "all languages go together: give one"),
    ],
)
def test_lanes_that_cannot_be_are_refused(languages, places, together, clue):
    sources = sift([question()], USUAL, preferred="en", seed=0)
    with pytest.raises(UserError, match=clue):
        lanes_of(sources, languages, places, together=together)


def test_sources_that_cannot_be_are_refused():
    with pytest.raises(UserError, match="the question 1 of d is of the domain 'maths': give it one of mathematics,"):
        sift([question(domain="maths")], USUAL, preferred="en", seed=0)
    with pytest.raises(UserError, match="removed all 1, the first as too little natural language"):
        sift([question("1 + 1")], USUAL, preferred="en", seed=0)
