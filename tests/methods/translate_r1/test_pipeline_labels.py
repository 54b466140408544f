"""A summary is translated and checked before its article: what is spent on which, and what the judge decides."""

import asyncio
import codecs
import dataclasses
import re

import pytest

from lcrag.data.questions import Question
from lcrag.evaluation import to_markdown
from lcrag.methods.translate_r1.pipeline.checks import Thresholds
from lcrag.methods.translate_r1.pipeline.report import attempt_rows, question_rows, report_tables, translation_report
from lcrag.methods.translate_r1.pipeline.stages import (
    Stages,
    fill_quotas,
    filter_sources,
    prompted_judge,
    prompted_rendering,
    quotas_of,
)
from lcrag.methods.translate_r1.pipeline.texts import (
    DOMAINS,
    LABEL,
    TEXT,
    judge_prompt,
    parts_of,
    portions_of,
    versions_of,
)

ARTICLE = "The rain came late to the highlands this year, and farmers north of the river lost half of their barley."
SUMMARY = "Late rain cost farmers in the north half of the barley."
FINNISH = {
    SUMMARY: "Sateen viivästyminen vei pohjoisen viljelijöiltä puolet ohrasta.",
    ARTICLE: "Sade saapui ylängöille tänä vuonna myöhään, ja joen pohjoispuolen viljelijät menettivät puolet ohrasta.",
}
BACK = {
    FINNISH[SUMMARY]: "Late rain took half of the barley from farmers in the north.",
    FINNISH[
        ARTICLE
    ]: "The rain came to the highlands late this year, and farmers north of the river lost half their barley.",
}


def asked_for(*summaries):
    extra = {"domain": "summarisation"}
    return Question(id="1", dataset="d", language="en", text=ARTICLE, answers=summaries or (SUMMARY,), extra=extra)


def attempt(question=None, verdict="SAME", **changed):
    """What became of a question where the translator says `changed[of]`, and the texts of all requests."""
    said, requests = FINNISH | BACK | {}, []

    async def ask(request):
        requests.append(request)
        if request.role == "judge":
            return verdict
        text = re.search(r"<input>\n(.*)\n</input>", request.prompt, re.DOTALL)[1]
        return changed.get(_name(text)) or f"<output>{said[text]}</output>"

    stages = Stages(renderings={"fi": prompted_rendering(ask)}, judge=prompted_judge(ask), thresholds=Thresholds())
    return asyncio.run(stages.attempt(question or asked_for(), "fi")), requests


def _name(text):
    names = {SUMMARY: "summary", ARTICLE: "article"}
    return names.get(text) or next(f"{names[english]}_back" for english, own in FINNISH.items() if own == text)


@pytest.mark.parametrize(
    ("changed", "portion", "stage", "cause", "requests"),
    [
        ({"summary": "Sorry."}, LABEL, "forward translation", "no output", 1),
        ({"summary": f"<output>{SUMMARY}</output>"}, LABEL, "heuristics", "a copy of the source", 1),
        ({"summary_back": "Sorry."}, LABEL, "back-translation", "no output", 2),
        ({"summary_back": "<output>What?</output>"}, LABEL, "back-translation", "low chrF", 2),
        ({"article": "Sorry."}, TEXT, "forward translation", "no output", 3),
        ({"article": "<output>Sade.</output>"}, TEXT, "heuristics", "too short", 3),
        ({"article_back": "<output>What?</output>"}, TEXT, "back-translation", "low chrF", 4),
        ({"verdict": "DIFFERENT"}, "", "judge", "DIFFERENT", 5),
        ({}, "", "", "", 5),
    ],
)
def test_nothing_is_spent_on_an_article_whose_summary_fails(changed, portion, stage, cause, requests):
    made, asked = attempt(**changed)
    assert (made.portion, made.stage, made.cause, len(asked)) == (portion, stage, cause, requests)
    translated = [ask.prompt for ask in asked if ask.role == "translator"]
    assert all(ARTICLE not in prompt for prompt in translated) == (portion == LABEL)
    assert "Translate a summary of an article from English" in translated[0]


def test_what_came_back_is_judged_together_and_makes_one_question():
    made, asked = attempt()
    assert made.passed
    assert made.translation == {"answer 1": FINNISH[SUMMARY], "question": FINNISH[ARTICLE]}
    assert [ask.max_tokens for ask in asked[:4]] == [512, 512, 2048, 2048]
    prompt = asked[-1].prompt
    assert f"<text>\n{BACK[FINNISH[ARTICLE]]}\n</text>" in prompt
    assert BACK[FINNISH[SUMMARY]] in prompt
    assert ARTICLE not in prompt
    assert SUMMARY not in prompt
    assert "whether the summary still summarises" in prompt
    [version] = versions_of(made.question, made.domain, made.translation, "fi")
    assert (version.text, version.answers) == (FINNISH[ARTICLE], (FINNISH[SUMMARY],))


def test_the_similarity_is_that_of_the_worse_of_the_two():
    made, _ = attempt(article_back=f"<output>{ARTICLE}</output>")
    label, _ = attempt(article="Sorry.")
    assert made.similarity == label.similarity < 1


def test_only_a_domain_with_a_label_is_taken_apart():
    several = portions_of(
        parts_of(asked_for(SUMMARY, "It rained."), DOMAINS["summarisation"]), DOMAINS["summarisation"]
    )
    assert [(each.name, list(each.parts)) for each in several] == [
        (LABEL, ["answer 1", "answer 2"]),
        (TEXT, ["question"]),
    ]
    [alone] = portions_of(parts_of(asked_for("1960"), DOMAINS["summarisation"]), DOMAINS["summarisation"])
    assert (alone.name, list(alone.parts)) == ("", ["question"])
    [quiz] = portions_of({"question": "Where?", "answer 1": "Here"}, DOMAINS["question"])
    assert (quiz.name, list(quiz.parts)) == ("", ["question", "answer 1"])
    parts = {"question": "Where?"}
    assert "whether the two mean the same" in judge_prompt(parts, {"question": "Where then?"}, DOMAINS["summarisation"])


def test_the_report_counts_the_articles_that_were_saved():
    """Of three summaries one is refused, one gets lost on the way back."""
    names = {"Silva": "Sorry.", "Lossy": None, "Anna": None}
    sources = [asked_for(f"{name} lost half of the barley.") for name in names]
    sources = [dataclasses.replace(each, id=name) for each, name in zip(sources, names, strict=True)]

    async def ask(request):
        if request.role == "judge":
            return "SAME"
        text = codecs.encode(re.search(r"<input>\n(.*)\n</input>", request.prompt, re.DOTALL)[1], "rot13")
        if "Silva" in codecs.encode(text, "rot13"):
            return "Sorry."
        return f"<output>{'Nothing is left.' if 'Lossy' in text else text}</output>"

    async def filled():
        stages = Stages(renderings={"fi": prompted_rendering(ask)}, judge=prompted_judge(ask), thresholds=Thresholds())
        return await fill_quotas(quotas, pools, stages, attempts=9, width=2, seen=lambda passed: None)

    pools = filter_sources(sources, Thresholds(), preferred="en", seed=0)
    quotas = quotas_of(pools, ("fi",), 3, together=False)
    tried = asyncio.run(filled())
    report = translation_report(pools, quotas, tried, ["translator"] * 4)
    [language] = report["languages"]
    assert (language["filled"], language["attempts"], language["texts_spared"]) == (1, 3, 2)
    assert language["removed"]["forward translation"] == {"label: no output": 1}
    assert language["removed"]["back-translation"] == {"label: low chrF": 1}
    assert "since their label failed: 2." in to_markdown(report_tables(report)[1])
    rows = {row["id"]: row for row in attempt_rows(pools, tried)}
    assert rows["Lossy"]["portion"] == "label"
    assert "question" not in rows["Lossy"]["translation"]
    [made] = question_rows(tried)
    assert (made["question"], made["answers"]) == (
        codecs.encode(ARTICLE, "rot13"),
        [codecs.encode("Anna lost half of the barley.", "rot13")],
    )
