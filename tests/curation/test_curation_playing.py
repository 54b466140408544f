"""Programs played by a text writer: the runner's episodes, batched searches, golden answers, a chat model."""

import dataclasses

import numpy as np
import pytest
from support import tiny_tokenizer
from support.local_server import scripted
from support.scripted_sampler import ScriptedSampler

from lcrag.curation.playing import GoldenAnswers, endpoint_teacher, messages, misread, play, right, with_stop
from lcrag.curation.rows import RowEncoder
from lcrag.data.questions import Question
from lcrag.episodes import Chat, Complete, Generate, Runner, Translate, Turn
from lcrag.episodes.chat import ContextTokenizer
from lcrag.errors import UserError
from lcrag.methods.baselines import adaptive_rag, d_rag, direct_inference
from lcrag.methods.baselines.rag import rag
from lcrag.methods.baselines.searches import ircot
from lcrag.methods.lcrl.program import hierarchical_search
from lcrag.methods.r_search.program import r_search
from lcrag.policy import ChatTemplate
from lcrag.retries import Patience
from lcrag.retrieval import Hit

TOKENIZER = tiny_tokenizer()
CHATTING = dataclasses.replace(
    TOKENIZER, chat_template=ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]")
)
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
    assert turns[0].by == "environment"
    assert turns[0].text.startswith("Capital")
    done = sum("</search>" in turn.text for turn in turns)
    return f"<search> {question.text} {done}</search>" if done < 2 else "<answer> Lima</answer>"


def played(programs, writer, searches=search, context=600, **options):
    return play(programs, writer, searches, ContextTokenizer(TOKENIZER, Chat()), context=context, **options)


def test_a_played_episode_is_the_runners():
    sampler = ScriptedSampler(TOKENIZER, lambda context, generation: answer(context), slots=3, context=600)

    def answer(context):
        done = context.count("</search>")
        return f"<search> Q{done}</search>" if done < 2 else "<answer> Lima</answer>"

    runner = Runner(sampler=sampler, tokenizer=TOKENIZER, search=search, max_tokens=99)
    asked = [question(number) for number in range(5)]
    expected = runner.run([(each, searching(each), number) for number, each in enumerate(asked)])
    writer = lambda asked, turns, request: answer("".join(turn.text for turn in turns))  # noqa: E731
    for record, other in zip(played([(each, searching(each)) for each in asked], writer), expected, strict=True):
        np.testing.assert_array_equal(record.tokens, other.tokens)
        np.testing.assert_array_equal(record.by_policy, other.by_policy)
        assert (record.turns, record.outcome, record.counts) == (other.turns, other.outcome, other.counts)
        assert not record.log_probabilities.any()


def test_the_writer_sees_no_chat_template_of_the_policy():
    seen = []

    def writer(asked, turns, request):
        seen.append(turns[0].text)
        return "<answer> Lima</answer>"

    programs = [(question(), r_search(question(), LANGUAGES))]
    [record] = play(programs, writer, search, ContextTokenizer(CHATTING, Chat()), context=2000)
    assert seen == [f"{record.system}\n\n{record.opening[0]}"]
    assert "[" not in seen[0]
    assert record.prompt.startswith("[system]")
    assert record.outcome.answer == "Lima"


def test_all_programs_search_together_and_may_be_written_for_in_parallel():
    batches = []

    def counted(queries, languages, k):
        batches.append(len(queries))
        return search(queries, languages, k)

    programs = lambda: [(question(number), searching(question(number))) for number in range(7)]  # noqa: E731
    records = played(programs(), searches_twice, counted)
    assert batches == [7, 7]  # the native collection first, then the other one
    assert {(record.outcome.answer, record.counts["searches"]) for record in records} == {("Lima", 2)}
    parallel = played(programs(), searches_twice, concurrency=3)
    assert [each.turns for each in parallel] == [each.turns for each in records]


def test_what_a_search_found_may_be_changed_for_one_program():
    def edit(number, found):
        return [[[dataclasses.replace(hit, text=f"told {number}") for hit in hits] for hits in row] for row in found]

    programs = [(question(number), reading(question(number))) for number in range(2)]
    records = played(programs, GoldenAnswers(), edit=edit)
    assert ["told 0" in records[0].prompt, "told 1" in records[1].prompt] == [True, True]


def test_golden_answers_are_what_the_program_reads():
    asked = question(answers=(" Lima ", "Ciudad de los Reyes"))
    programs = (reading(asked), reading(asked, "full"), direct_inference(asked, LANGUAGES), searching(asked))
    for record in played([(asked, program) for program in programs], GoldenAnswers()):
        assert TOKENIZER.decode(record.tokens[record.by_policy]) == "<answer> Lima</answer>"
        assert (record.outcome.answer, misread(record)) == ("Lima", "")
    [record] = played([(question(), reading(question(), "full"))], GoldenAnswers("The answer is {answer}."))
    assert "'The answer is Lima.', not 'Lima'" in misread(record)
    assert "no room" in misread(dataclasses.replace(record, finished=False))


def test_completions_of_the_policy_are_written_too():
    """In contexts of their own, with the chat template around the prompt, and kept as rows."""
    seen = []

    def writer(asked, turns, request):
        seen.append((type(request).__name__, [turn.by for turn in turns]))
        return "<information> Lima. </information>" if isinstance(request, Complete) else "<answer> Lima</answer>"

    programs = [(question(), d_rag(question(), LANGUAGES))]
    [record] = play(programs, writer, search, ContextTokenizer(CHATTING, Chat()), context=3000)
    assert seen == [("Complete", ["environment"])] * 2 + [("Generate", ["environment"])]
    assert record.outcome.answer == "Lima"
    rows = RowEncoder(CHATTING, Chat(), 3000).completions(record)
    for row, completion in zip(rows, record.completions, strict=True):
        assert CHATTING.decode(row.tokens[~row.by_policy]) == completion.prompt
        assert completion.prompt == f"[user]{completion.opening}[assistant]"
        assert CHATTING.decode(row.tokens[row.by_policy]) == "<information> Lima. </information><eos>"


def broken(*_):
    raise OSError("no route")


def translating(asked):
    yield Translate(asked.text, "fi", "en")


@pytest.mark.parametrize(
    ("program", "answers", "options"),
    [
        (reading, (), {}),
        (lambda asked: ircot(asked, LANGUAGES), ("Lima",), {}),  # completes prompts outside its dialogue
        (lambda asked: adaptive_rag(asked, LANGUAGES, classifier="judge"), ("Lima",), {}),  # asks another model
        (reading, ("Lima",), {"searches": broken, "retries": Patience(attempts=1)}),
        (translating, ("Lima",), {"translator": broken, "retries": Patience(attempts=1)}),
        (searching, ("Lima",), {"context": 18}),
    ],
)
def test_mistakes_name_the_question(program, answers, options):
    asked = question(answers=answers)
    with pytest.raises(UserError, match=r"question test/0 \(fi\)"):
        played([(asked, program(asked))], GoldenAnswers(), **options)


@pytest.mark.parametrize(
    ("reward", "answer", "gold", "expected"),
    [
        ("mathematics", r"\boxed{20 °C}", "20", True),
        ("mathematics", r"\boxed{1½}", "5.5", False),
        ("multiple_choice", "The answer is B", "B", True),
    ],
)
def test_an_answer_is_read_as_its_reward_reads_it(reward, answer, gold, expected):
    asked = question(answers=(gold,))
    records = played([(asked, direct_inference(asked, LANGUAGES))], lambda *_: f"<answer> {answer} </answer>")
    assert right(records, reward) == [expected]


def test_a_turn_that_an_endpoint_cuts_off_stays_open():
    choice = {"index": 0, "message": {"role": "assistant", "content": "<answer> Li"}, "finish_reason": "length"}
    with scripted((200, {}, {"choices": [choice]})) as (url, _):
        write = endpoint_teacher("atlas/cold_start", Chat(), 600, "m", url).writer(0.0)
        assert write(question(), [Turn("environment", "Q")], Generate(stop=("</answer>",))) == "<answer> Li"


def test_a_chat_model_is_the_assistant():
    turns = [Turn("environment", "Q"), Turn("environment", " more"), Turn("policy", "<search>a</search>")]
    assert messages([*turns, Turn("environment", "found")]) == [
        {"role": "user", "content": "Q more"},
        {"role": "assistant", "content": "<search>a</search>"},
        {"role": "user", "content": "found"},
    ]
    for text, whole in (  # the stop string that endpoints leave out is put back
        ("<think>t</think><search>a", "<think>t</think><search>a</search>"),
        ("<answer> A", "<answer> A</answer>"),
        ("<search>a</search> and then", "<search>a</search>"),
        ("I do not know.", "I do not know."),
        ("<search>a <answer> A", "<search>a <answer> A</answer>"),
        ("", ""),
    ):
        assert with_stop(text, ("</search>", "</answer>")) == whole
