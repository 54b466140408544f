"""Programs played by a teacher: the runner's own episodes, their searches in few batches, golden answers read back."""

import dataclasses

import numpy as np
import pytest

from lcrag.curation.playing import play
from lcrag.curation.text_writers import GoldenAnswers, misread
from lcrag.data.questions import Question
from lcrag.episodes import Chat, Retries, Runner
from lcrag.episodes.context_text import ContextTokenizer
from lcrag.errors import UserError
from lcrag.methods.baselines import direct_inference
from lcrag.methods.baselines.ircot import ircot
from lcrag.methods.baselines.rag import rag
from lcrag.methods.lcrl.program import hierarchical_search
from lcrag.methods.r_search.program import r_search
from lcrag.policy import ChatTemplate
from lcrag.retrieval import Hit
from lcrag.testing import tiny_tokenizer
from lcrag.testing.scripted_sampler import ScriptedSampler

TOKENIZER = tiny_tokenizer()
LANGUAGES = ("en", "fi")


def question(number=0, answers=("Lima",)):
    return Question(id=str(number), dataset="test", language="fi", text=f"Capital {number}?", answers=answers)


def search(queries, languages, k):
    texts = [f"{query} in {code}" for query, code in zip(queries, languages, strict=True)]
    return [[Hit(id="1", title="Peru", text=text, score=1.0, language="fi")] for text in texts]


def searching(question):
    return hierarchical_search(question, LANGUAGES, prompt="atlas", style="atlas", budget=2)


def reading(question, wording="atlas"):
    return rag(question, LANGUAGES, wording=wording)


def searches_twice(question, turns, request):
    """Reads the whole dialogue, the prompt included."""
    assert turns[0].by == "environment" and turns[0].text.startswith("Capital")
    done = sum("</search>" in turn.text for turn in turns)
    return f"<search> {question.text} {done}</search>" if done < 2 else "<answer> Lima</answer>"


def played(cast, teacher, searches=search, context=600, **options):
    return play(cast, teacher, searches, ContextTokenizer(TOKENIZER, Chat()), context=context, **options)


def test_a_played_episode_is_the_runners():
    sampler = ScriptedSampler(TOKENIZER, lambda context, generation: answer(context), slots=3, context=600)

    def answer(context):
        done = context.count("</search>")
        return f"<search> Q{done}</search>" if done < 2 else "<answer> Lima</answer>"

    runner = Runner(sampler=sampler, tokenizer=TOKENIZER, search=search, max_tokens=99)
    cast = [question(number) for number in range(5)]
    expected = runner.run([(each, searching(each), number) for number, each in enumerate(cast)])
    teacher = lambda asked, turns, request: answer("".join(turn.text for turn in turns))  # noqa: E731
    for record, other in zip(played([(each, searching(each)) for each in cast], teacher), expected, strict=True):
        np.testing.assert_array_equal(record.tokens, other.tokens)
        np.testing.assert_array_equal(record.by_policy, other.by_policy)
        assert (record.turns, record.outcome, record.counts) == (other.turns, other.outcome, other.counts)
        assert not record.log_probabilities.any()


def test_the_teacher_sees_no_chat_template_of_the_policy():
    template = ChatTemplate("{% for each in messages %}[{{ each.role }}]{{ each.content }}{% endfor %}[assistant]")
    tokenizer, seen = dataclasses.replace(TOKENIZER, chat_template=template), []

    def teacher(asked, turns, request):
        seen.append(turns[0].text)
        return "<answer> Lima</answer>"

    cast = [(question(), r_search(question(), LANGUAGES))]
    [record] = play(cast, teacher, search, ContextTokenizer(tokenizer, Chat()), context=2000)
    assert seen == [f"{record.system}\n\n{record.opening[0]}"] and "[" not in seen[0]
    assert record.prompt.startswith("[system]") and record.outcome.answer == "Lima"


def test_all_programs_search_together():
    batches = []

    def counted(queries, languages, k):
        batches.append(len(queries))
        return search(queries, languages, k)

    cast = [(question(number), searching(question(number))) for number in range(7)]
    records = played(cast, searches_twice, counted)
    assert batches == [7, 7]  # the native collection first, then the other one
    assert all(record.outcome.answer == "Lima" and record.counts["searches"] == 2 for record in records)


def test_what_a_search_found_may_be_changed_for_one_program():
    def edit(number, found):
        return [[[dataclasses.replace(hit, text=f"told {number}") for hit in hits] for hits in row] for row in found]

    cast = [(question(number), reading(question(number))) for number in range(2)]
    records = played(cast, GoldenAnswers(), edit=edit)
    assert ["told 0" in records[0].prompt, "told 1" in records[1].prompt] == [True, True]


@pytest.mark.parametrize(
    ("program", "learned"),
    [
        (reading, " Lima</answer>"),  # the prompt has opened the answer
        (lambda asked: reading(asked, "full"), "<answer> Lima</answer>"),
        (lambda asked: direct_inference(asked, LANGUAGES), "<answer> Lima</answer>"),
        (searching, "<answer> Lima</answer>"),
    ],
)
def test_golden_answers_are_what_the_program_reads(program, learned):
    asked = question(answers=(" Lima ", "Ciudad de los Reyes"))
    [record] = played([(asked, program(asked))], GoldenAnswers())
    assert TOKENIZER.decode(record.tokens[record.by_policy]) == learned
    assert record.outcome.answer == "Lima" and misread(record) == ""


def test_answers_that_the_program_does_not_read():
    [record] = played([(question(), reading(question()))], GoldenAnswers("The answer is {answer}."))
    assert "read the answer None from 'The answer is Lima.', not 'Lima'" in misread(record)
    assert "no room" in misread(dataclasses.replace(record, finished=False))


def test_mistakes_are_one_sentence():
    with pytest.raises(UserError, match="has no place {answer}"):
        GoldenAnswers("<answer></answer>")
    with pytest.raises(UserError, match=r"question test/0 \(fi\) has no golden answer"):
        played([(question(answers=()), reading(question()))], GoldenAnswers())
    with pytest.raises(UserError, match="completes prompts beside its dialogue"):
        played([(question(), ircot(question(), LANGUAGES))], GoldenAnswers())

    def broken(queries, languages, k):
        raise OSError("no route")

    with pytest.raises(UserError, match=r"the search of question test/0 \(fi\) for 'Capital 0\?' failed"):
        played([(question(), reading(question()))], GoldenAnswers(), broken, retries=Retries(attempts=1))
    with pytest.raises(UserError, match="the prompt of question"):
        played([(question(), searching(question()))], GoldenAnswers(), context=18)
