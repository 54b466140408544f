"""What each stage of the translation pipeline removes, and what a source costs until it passes or falls."""

import asyncio

import pytest
from translation_sources import CHOICE, PROBLEM, USUAL, question

from lcrag.errors import UserError
from lcrag.methods.translate_r1.pipeline.checks import Thresholds, defect, natural_language_share, unfit_source
from lcrag.methods.translate_r1.pipeline.stages import (
    ANSWERS_TRIED,
    Stages,
    UsableAnswers,
    exact_rendering,
    prompted_judge,
    prompted_rendering,
)
from lcrag.methods.translate_r1.pipeline.texts import domain_of


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
    stages = Stages(renderings={"fi": prompted_rendering(script)}, judge=prompted_judge(script), thresholds=USUAL)
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
    assert (attempt.stage, attempt.cause) == (stage, cause)
    assert len(asked) == requests
    numbers = [ask.number for ask in asked if ask.role == "judge"]
    assert numbers == list(range(len(numbers)))


def test_short_texts_may_lose_more_on_the_way():
    close = Thresholds(round_trip=0.95, round_trip_texts=0.6)
    script = Script(lambda ask: FINNISH if "to Finnish" in ask.prompt else BACK if ask.role == "translator" else "SAME")
    stages = Stages(renderings={"fi": prompted_rendering(script)}, judge=prompted_judge(script), thresholds=close)
    assert asyncio.run(stages.attempt(question(), "fi")).cause == "low chrF"
    assert asyncio.run(stages.attempt(question(domain="translation"), "fi")).passed
    assert {ask.max_tokens for ask in script.asked if ask.role == "translator"} == {2048, 512}


@pytest.mark.parametrize(
    "wrong", [{"natural_language": 1.5}, {"copy": -0.1}, {"min_length": 3.0}, {"round_trip_texts": 2.0}]
)
def test_thresholds_that_are_none_are_refused(wrong):
    with pytest.raises(UserError, match=f"Thresholds.{next(iter(wrong))} (is|must be)"):
        Thresholds(**wrong)


def test_an_exact_translator_needs_no_model():
    def mirrored(texts, source, target):
        return [text[::-1] for text in texts]

    stages = Stages(renderings={"qki": exact_rendering(mirrored)}, judge=prompted_judge(Script(None)), thresholds=USUAL)
    attempt = asyncio.run(stages.attempt(question(), "qki"))
    assert attempt.passed
    assert attempt.translation == {"question": PROBLEM[::-1]}
    assert attempt.similarity == 1.0


def test_a_model_that_never_says_what_is_wanted_ends_the_run():
    usable = UsableAnswers("the judge says neither SAME nor DIFFERENT")
    for _ in range(ANSWERS_TRIED - 1):
        usable.count("hm", usable=False)
    with pytest.raises(UserError, match="nor DIFFERENT in 64 answers, it says 'hm': choose another model"):
        usable.count("hm", usable=False)
    usable = UsableAnswers("x")
    usable.count("SAME", usable=True)
    for _ in range(ANSWERS_TRIED):
        usable.count("hm", usable=False)
