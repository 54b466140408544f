"""Training texts of D-RAG from golden answers: arguments that quote, answers that weigh."""

import dataclasses

import pytest
from baseline_scripts import QUESTION
from support import tiny_tokenizer

from lcrag.curation.playing import play
from lcrag.curation.text_writers import misread
from lcrag.episodes import Chat
from lcrag.episodes.context_text import ContextTokenizer
from lcrag.errors import UserError
from lcrag.methods.baselines import adaptive_rag, d_rag
from lcrag.methods.baselines.d_rag import NO_EVIDENCE, GoldenArguments
from lcrag.retrieval import Hit

IN_JAPANESE = dataclasses.replace(QUESTION, language="ja", text="ペルーの首都は？", answers=("リマ",))
PASSAGES = {
    "fr": "Le Pérou est un pays. Sa capitale est Lima. Lima compte dix millions d'habitants.",
    "ja": "ペルーは国である。首都はリマである。",
    "ar": "Cusco n'est pas la réponse.",
    "en": "",
}


def search(queries, languages, k):
    texts = [PASSAGES[code] for code in languages]
    return [[Hit(id="1", title="Pérou (pays)", text=text, score=1.0, language="fr")] if text else [] for text in texts]


def written(wording, question=QUESTION, program=d_rag, questions=(QUESTION, IN_JAPANESE)):
    played = [(question, program(question, tuple(PASSAGES), wording=wording))]
    tokenizer = ContextTokenizer(tiny_tokenizer(), Chat())
    [record] = play(played, GoldenArguments(questions), search, tokenizer, context=9000)
    return record


def test_an_argument_quotes_the_sentence_with_a_golden_answer_in_any_language():
    record = written("full")
    assert [each.text for each in record.completions] == [
        "<information> Extraction: Sa capitale est Lima. Explanation: this supports the answer Lima. </information>",
        "<information> Extraction: 首都はリマである。 Explanation: this supports the answer リマ. </information>",
        f"<information> {NO_EVIDENCE} </information>",
    ]
    assert record.turns[-1].text == (
        "<think> The arguments from French, Japanese passages support the answer. Those from Arabic passages have no"
        " evidence. </think>\n<answer> Lima </answer>"
    )
    assert misread(record) == ""


def test_the_short_wording_quotes_whole_passages():
    record = written("atlas")
    assert [each.text for each in record.completions] == [
        f" Pérou (pays): {PASSAGES['fr']}\n", f" Pérou (pays): {PASSAGES['ja']}\n", " ?\n"
    ]  # fmt: skip
    assert f"\n Pérou (pays): {PASSAGES['fr']}\n" in record.prompt
    assert (record.turns[-1].text, record.outcome.answer) == ("<answer> Lima</answer>", "Lima")


def test_a_title_is_no_evidence():
    titled = dataclasses.replace(QUESTION, answers=("Pérou (pays)",))
    record = written("atlas", titled, questions=(titled,))
    assert [each.text for each in record.completions] == [" ?\n"] * 3


def test_yes_and_no_are_not_looked_for_in_passages():
    asked = dataclasses.replace(QUESTION, answers=("pays",)), dataclasses.replace(QUESTION, answers=("no",))
    texts = [written("full", question, questions=[question]).completions[0].text for question in asked]
    assert ["Extraction: Le Pérou est un pays." in text for text in texts] == [True, False]


def test_another_program_is_refused():
    with pytest.raises(UserError, match="GoldenArguments writes D-RAG's texts: set Method.program to @d_rag"):
        written("full", program=adaptive_rag)
