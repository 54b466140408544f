"""The translation pipeline: parts and prompts, what each stage removes, quotas, reports, and models asked once."""

import asyncio
import collections
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrag.data.questions import Question
from lcrag.episodes import Completion
from lcrag.errors import UserError
from lcrag.methods.translate_r1.pipeline import (
    ANSWERS_TRIED,
    Attempt,
    CompleterModel,
    ModelRequest,
    RequestCache,
    Sources,
    Stages,
    Thresholds,
    fill_quotas,
    filter_sources,
    natural_language_share,
    quotas_of,
    unfit_source,
    verdict_in,
)
from lcrag.methods.translate_r1.texts import (
    DOMAINS,
    LABEL,
    QUESTION,
    TEXT,
    domain_of,
    parts_in,
    parts_of,
    split_options,
    versions_of,
    written,
)

USUAL = Thresholds()
PROBLEM = "Anna has 3 apples and buys 5 more in the old town. How many apples does she have now?"
CHOICE = "Which of these is a fruit of a tree?\nA. an apple\nB. a potato\nC. 12\nD. a stone"


def question(text=PROBLEM, *answers, domain="mathematics", language="en", number=1, **extra):
    extra |= {"domain": domain} if domain else {}
    return Question(id=str(number), dataset="d", language=language, text=text, answers=answers or ("8",), extra=extra)


def test_options_are_the_last_lines_in_turn():
    options = split_options("A. Smith asks:\nwhich?\n(A) one\n  (B) two\nlines\n(C) 3\n(D) IV")
    assert options.stem == "A. Smith asks:\nwhich?"
    assert options.texts["B"] == "two\nlines"
    assert split_options("A or B?") is None


@given(st.lists(st.text(alphabet="xyz ", min_size=1).filter(str.strip), min_size=2, max_size=26))
def test_options_come_back(texts):
    options = [f"({chr(ord('A') + place)}) {text.strip()}" for place, text in enumerate(texts)]
    choice = question("\n".join(["Which?", *options]), domain="multiple_choice")
    parts = parts_of(choice, domain_of(choice))
    assert list(parts.values()) == ["Which?", *(text.strip() for text in texts)]
    [version] = versions_of(choice, domain_of(choice), parts, "fi")
    assert version.text == choice.text


def test_what_is_translated_and_what_becomes_of_it():
    choice = question(CHOICE, "A", domain="multiple_choice", tier="high")
    parts = parts_of(choice, domain_of(choice))
    assert list(parts) == ["question", "A", "B", "C", "D"]
    [version] = versions_of(choice, domain_of(choice), {key: text.upper() for key, text in parts.items()}, "am")
    assert version.text.startswith("WHICH OF THESE IS A FRUIT OF A TREE?\nA. AN APPLE\n")
    assert version.answers == ("A",)
    assert version.extra == {"domain": "multiple_choice", "tier": "low", "translated_from": "en", "original": CHOICE}
    asked = question("Where is Chad", "in Africa", "1960", domain="")
    assert parts_of(asked, QUESTION) == {"question": "Where is Chad", "answer 1": "in Africa"}
    [version] = versions_of(asked, QUESTION, {"question": "Missä on Tšad", "answer 1": "Afrikassa"}, "fi")
    assert (version.text, version.answers) == ("Missä on Tšad?", ("Afrikassa", "1960"))
    assert version.coupling == asked.coupling
    assert "tier" not in version.extra
    text = question("The rain has come.", "unused", domain="translation")
    into, back = versions_of(text, DOMAINS["translation"], {"question": "Sade on tullut."}, "fi")
    assert (into.language, into.text, into.answers) == ("fi", "Sade on tullut.", ("The rain has come.",))
    assert (back.language, back.text, back.answers) == ("en", "The rain has come.", ("Sade on tullut.",))
    assert (into.id, back.id) == ("1/fi-en", "1/en-fi")


@pytest.mark.parametrize(
    ("said", "like", "found"),
    [
        ("<output> Moi </output>", ("question",), {"question": "Moi"}),
        ("first <output>no</output> then <OUTPUT>yes</OUTPUT>", ("question",), {"question": "yes"}),
        ("<output>Moi", ("question",), None),
        ("<output> </output>", ("question",), None),
        ('<output>```json\n{"A": "b", "question": "a"}\n```</output>', ("question", "A"), {"question": "a", "A": "b"}),
        *(
            (f"<output>{inside}</output>", ("question", "A"), None)
            for inside in (
                '{"question": "a"}',
                '{"question": "a", "A": "b", "B": "c"}',
                '{"question": "a", "A": 1}',
                '{"question": "a", "A": }',
                "a\nA. b",
            )
        ),
    ],
)
def test_parts_in_an_answer(said, like, found):
    assert parts_in(said, dict.fromkeys(like, "x")) == found


@given(st.dictionaries(st.text(min_size=1), st.text().map(str.strip).filter(bool), min_size=2))
def test_parts_survive_a_prompt(parts):
    if "</output>" not in written(parts).lower():
        assert parts_in(f"<output>{written(parts)}</output>", parts) == parts


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("<verdict>SAME</verdict>", "SAME"),
        ("Because ...\n<verdict> different. </verdict>", "DIFFERENT"),
        ("<verdict>SAME</verdict> no: <verdict>DIFFERENT</verdict>", "DIFFERENT"),
        ("**Same**", "SAME"),
        *((said, "neither SAME nor DIFFERENT") for said in ("They are the SAME.", "")),
    ],
)
def test_verdicts(said, verdict):
    assert verdict_in(said) == verdict


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("It costs $5 and then $10, or ($3)$4.", 0.8, 1.0),  # prices are no formulas
        (r"Solve $x^2 + 3x = \frac{5}{2}$ for x.", 0.0, 0.45),
        (r"\begin{align} a &= b \end{align} so", 0.0, 0.1),
        ("```\nfor i in range(10): print(i)\n``` prints?", 0.0, 0.3),
        ("小明有苹果，一共有多少？", 1.0, 1.0),
        ("می\u200cخواهم سیب بخرم.", 1.0, 1.0),
        ("", 0.0, 0.0),
    ],
)
def test_the_share_of_natural_language(text, least, most):
    assert least <= natural_language_share(text) <= most


TO_K = "\n".join(["Which of these is a planet?", *(f"{letter}. the planet {letter}" for letter in "ABCDEFGHIJK")])


@pytest.mark.parametrize(
    ("text", "answer", "domain", "cause"),
    [
        ("a" * 1999, "8", "mathematics", ""),
        ("a" * 2000, "8", "mathematics", "too long"),
        (r"Compute $\int_0^1 x^2 dx + \sum_{k=1}^{10} k$.", "8", "mathematics", "too little natural language"),
        (CHOICE, "A", "multiple_choice", ""),
        (CHOICE.replace("D. a stone", "D."), "A", "multiple_choice", "no options A to D"),
        (CHOICE, "E", "multiple_choice", "the answer is no option"),
        (TO_K, "J", "multiple_choice", ""),
        (TO_K, "K", "multiple_choice", "the answer is no option"),
        ("so " * 900, "x", "summarisation", ""),
        (CHOICE.replace("a stone", "a stone " * 300), "A", "multiple_choice", ""),
        ("1 + 1 = ?\nA. one\nB. two\nC. three\nD. four", "B", "multiple_choice", "too little natural language"),
    ],
)
def test_the_source_filter(text, answer, domain, cause):
    asked = question(text, answer, domain=domain)
    assert unfit_source(asked, domain_of(asked), USUAL) == cause


def attempted(asked, say, thresholds=USUAL, language="fi", exact=None):
    """What becomes of a source where the models answer by `say`, and all requests."""
    requests = []

    async def ask(request):
        requests.append(request)
        return say(request)

    return asyncio.run(Stages(ask, thresholds, exact or {}).attempt(asked, language)), requests


FINNISH = "<output>Annalla on 3 omenaa ja hän ostaa 5 lisää. Montako omenaa hänellä on nyt?</output>"
BACK = "<output>Anna has 3 apples and buys 5 more in the town. How many apples does she have now?</output>"


def test_short_texts_may_lose_more_on_the_way_and_exact_translators_need_no_model():
    def say(request):
        return FINNISH if "to Finnish" in request.prompt else BACK if request.role == "translator" else "SAME"

    close = Thresholds(round_trip=0.95, round_trip_texts=0.6)
    assert attempted(question(), say, close)[0].cause == "low chrF"
    attempt, requests = attempted(question(domain="translation"), say, close)
    assert attempt.passed
    assert {request.max_tokens for request in requests if request.role == "translator"} == {512}
    mirror = {"qki": lambda texts, source, target: [text[::-1] for text in texts]}
    attempt, requests = attempted(question(), say, language="qki", exact=mirror)
    assert attempt.translation == {"question": PROBLEM[::-1]}
    assert (attempt.passed, attempt.similarity, requests) == (True, 1.0, [])


@pytest.mark.parametrize("silent", ["translator", "judge"])
def test_a_model_that_never_says_what_is_wanted_ends_the_run(silent):
    async def many(usable):
        says = {"translator": FINNISH, "judge": "SAME"}

        async def ask(request):
            asked.append(request.role)
            if silent == request.role and asked.count(silent) != usable:
                return "Hm."
            return BACK if "to English" in request.prompt else says[request.role]

        stages = Stages(ask, USUAL, {})
        for _ in range(ANSWERS_TRIED):
            await stages.attempt(question(), "fi")

    asked = []
    with pytest.raises(UserError, match=f"none of the {silent}'s first 64"):
        asyncio.run(many(usable=0))
    assert asked.count(silent) == ANSWERS_TRIED
    asked = []
    asyncio.run(many(usable=2))  # one usable answer is enough


ARTICLE = "The rain came late to the highlands this year, and farmers north of the river lost half of their barley."
SUMMARY = "Late rain cost farmers in the north half of the barley."
FINNISH_SUMMARY = "Sateen viivästyminen vei pohjoisen viljelijöiltä puolet ohrasta."
FINNISH_ARTICLE = "Sade saapui ylängöille myöhään, ja joen pohjoispuolen viljelijät menettivät puolet ohrasta."
SAID = {
    "summary": (SUMMARY, FINNISH_SUMMARY),
    "article": (ARTICLE, FINNISH_ARTICLE),
    "summary_back": (FINNISH_SUMMARY, "Late rain took half of the barley from farmers in the north."),
    "article_back": (FINNISH_ARTICLE, ARTICLE.replace("half of their barley", "half their barley in that year")),
}


def asked_for(*summaries, number=1):
    return question(ARTICLE, *(summaries or (SUMMARY,)), domain="summarisation", number=number)


def summarised(verdict="SAME", **changed):
    """What becomes of an article where the translator says `changed[of]`, and all requests."""

    def say(request):
        if request.role == "judge":
            return verdict
        text = re.search(r"<input>\n(.*)\n</input>", request.prompt, re.DOTALL)[1]
        name, said = next((name, said) for name, (asked, said) in SAID.items() if asked == text)
        return changed.get(name, f"<output>{said}</output>")

    return attempted(asked_for(), say)


@pytest.mark.parametrize(
    ("changed", "portion", "stage", "cause", "requests"),
    [
        ({"summary": "Sorry."}, LABEL, "forward translation", "no output", 1),
        ({"summary": f"<output>{SUMMARY}</output>"}, LABEL, "heuristics", "a copy of the source", 1),
        ({"summary_back": "<output>What?</output>"}, LABEL, "back-translation", "low chrF", 2),
        ({"article": "Sorry."}, TEXT, "forward translation", "no output", 3),
        ({"article": "<output>Sade.</output>"}, TEXT, "heuristics", "too short", 3),
        ({"article_back": "<output>What?</output>"}, TEXT, "back-translation", "low chrF", 4),
        ({"verdict": "DIFFERENT"}, "", "judge", "DIFFERENT", 5),
        ({}, "", "", "", 5),
    ],
)
def test_nothing_is_spent_on_an_article_whose_summary_fails(changed, portion, stage, cause, requests):
    made, asked = summarised(**changed)
    assert (made.portion, made.stage, made.cause, len(asked)) == (portion, stage, cause, requests)
    prompts = [request.prompt for request in asked if request.role == "translator"]
    assert all(ARTICLE not in prompt for prompt in prompts) == (portion == LABEL)
    assert "Translate a summary of an article from English" in prompts[0]


def test_a_summary_and_its_article_are_judged_together_and_make_one_question():
    made, asked = summarised()
    assert made.translation == {"answer 1": SAID["summary"][1], "question": SAID["article"][1]}
    assert [request.max_tokens for request in asked[:4]] == [512, 512, 2048, 2048]
    prompt = asked[-1].prompt
    assert f"<text>\n{SAID['article_back'][1]}\n</text>" in prompt
    assert SAID["summary_back"][1] in prompt
    assert ARTICLE not in prompt and SUMMARY not in prompt
    assert "whether the summary still summarises" in prompt
    [version] = made.questions
    assert (version.text, version.answers) == (SAID["article"][1], (SAID["summary"][1],))


def test_sources_are_sifted_and_put_in_one_order_for_all_languages():
    questions = [question(PROBLEM.replace("Anna", f"Anna {n}"), number=n) for n in range(6)]
    questions += [question("1 + 1", number=9), question(CHOICE, "B", domain="multiple_choice", number=10)]
    finnish = question("Anna ostaa omenoita. Montako?", language="fi", number=3)
    sources = filter_sources([finnish, *questions], USUAL, preferred="en", seed=0)
    assert [each.cause for each in sources.removed] == ["too little natural language"]
    assert {name: len(pool) for name, pool in sources.pools.items()} == {"mathematics": 6, "multiple_choice": 1}
    [both] = [[each.language for each in pool] for pool in sources.pools["mathematics"] if len(pool) == 2]
    assert both == ["en", "fi"]
    assert filter_sources(questions, USUAL, preferred="en", seed=1).pools != sources.pools
    quotas = quotas_of(sources, ("fi", "am"), {"fi": 2, "am": 5}, together=False)
    assert [(quota.domain.name, *quota.languages, quota.places) for quota in quotas] == [
        ("mathematics", "fi", 2), ("mathematics", "am", 5), ("multiple_choice", "fi", 2), ("multiple_choice", "am", 5)
    ]  # fmt: skip
    [quota, _] = quotas_of(sources, ("fi", "am"), 4, together=True)
    assert (quota.languages, quota.places) == (("fi", "am"), 4)
    texts = filter_sources([question(domain="translation")], USUAL, preferred="en", seed=0)
    assert [quota.languages for quota in quotas_of(texts, ("en", "fi"), 4, together=False)] == [("fi",)]


@pytest.mark.parametrize(
    ("languages", "places", "together", "clue"),
    [
        ((), 1, False, "translations.languages"),
        (("fi", "am"), {"fi": 1}, False, "translations.places"),
        (("fi", "am"), {"fi": 1, "am": 2}, True, "translations.places"),
    ],
)
def test_sources_and_quotas_that_cannot_be_are_refused(languages, places, together, clue):
    sources = filter_sources([question()], USUAL, preferred="en", seed=0)
    with pytest.raises(UserError, match=clue):
        quotas_of(sources, languages, places, together=together)
    for asked in (question(domain="maths"), question("1 + 1")):
        with pytest.raises(UserError):
            filter_sources([asked], USUAL, preferred="en", seed=0)


@given(
    st.lists(st.booleans(), max_size=60),
    st.integers(1, 8),
    st.integers(1, 5),
    st.integers(1, 9),
    st.randoms(use_true_random=False),
)
def test_places_are_filled_the_same_way_whatever_comes_first(good, places, attempts, width, random):
    now = most = 0

    class Tried:
        async def attempt(self, source, language):
            nonlocal now, most
            now += 1
            most = max(most, now)
            for _ in range(random.randrange(4)):
                await asyncio.sleep(0)
            now -= 1
            made = Attempt(source, DOMAINS["mathematics"], language)
            return made if good[int(source.id)] else made.removed("judge", "DIFFERENT")

    def filled(width):
        sources = Sources({"mathematics": [(question(number=number),) for number in range(len(good))]}, ())
        [quota] = quotas_of(sources, ("fi",), places, together=False)
        seen = []
        asyncio.run(fill_quotas([quota], sources, Tried(), attempts=attempts, width=width, seen=seen.append))
        assert sorted(seen) == sorted(made.passed for *_, [made] in quota.tried)
        return [(place, number, made.passed) for place, number, [made] in quota.tried]

    tried = filled(width)
    assert most <= width
    assert tried == filled(1)
    used = [place for place, _, passed in tried if passed]
    assert len(set(used)) == len(used)  # an item is used once, a place filled once
    assert len(tried) <= len(good)
    by_place = collections.Counter(place for place, *_ in tried)
    assert all(count <= attempts for count in by_place.values())
    # Nothing is left empty while it has attempts left and there are items.
    empty = [place for place in range(places) if place not in used]
    assert not empty or len(tried) == len(good) or all(by_place[place] == attempts for place in empty)


def ask(prompt, role="translator", number=0):
    return ModelRequest(role=role, prompt=prompt, max_tokens=9, number=number)


def test_no_more_requests_are_in_flight_than_a_model_takes():
    now = most = 0

    class Busy:
        name, in_flight = "busy", 3

        async def answer(self, request):
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.002)
            now -= 1
            return request.prompt

    async def asking():
        async with RequestCache({"translator": Busy()}, {}, list) as asked:
            await asyncio.gather(*(asked(ask(prompt)) for prompt in "abcdef"))

    asyncio.run(asking())
    assert most == 3


def test_a_local_model_is_asked_in_batches():
    batches = []

    def completer(requests):
        batches.append([generation.temperature for _, generation in requests])
        if any("bad" in prompt for prompt, _ in requests):
            raise UserError("a prompt leaves no room")
        return [Completion(text=prompt * 2, finish_reason="eos", tokens=1) for prompt, _ in requests]

    async def saying(*asks):
        model = CompleterModel(completer)
        return await asyncio.gather(*map(model.answer, asks), return_exceptions=True)

    assert asyncio.run(saying(*(ask(f"p{n}", number=n % 2) for n in range(9)))) == [f"p{n}" * 2 for n in range(9)]
    assert len(batches) <= 2
    assert sorted(sum(batches, [])) == [0.0] * 5 + [0.7] * 4
    assert all(isinstance(each, UserError) for each in asyncio.run(saying(ask("bad"), ask("good"))))
    with pytest.raises(UserError, match="in_flight"):
        RequestCache({"judge": CompleterModel(completer, in_flight=0)}, {}, batches.extend)
    with pytest.raises(UserError, match="no judge"):
        asyncio.run(RequestCache({}, {}, batches.extend)(ask("a", "judge")))
    assert len({ask("a").key("m"), ask("a").key("n"), ask("a", "judge").key("m"), ask("a", number=1).key("m")}) == 4
