"""RAG-R1's training data: a trajectory cut at every retrieval, and the selection and split of questions."""

import dataclasses
import json

import pytest
from support import tiny_tokenizer

from lcrag.curation.playing import EMPTY, INVALID, KEPT, NO_ANSWER, TOO_MANY, WRONG, play, right, verdict
from lcrag.data.demonstrations import read_demonstrations
from lcrag.data.jsonl_questions import jsonl_questions
from lcrag.data.questions import Question
from lcrag.data.rows import BadRows
from lcrag.episodes import Chat, SideCompletion, episode_json
from lcrag.episodes.context_text import ContextTokenizer
from lcrag.errors import UserError
from lcrag.methods.rag_r1.curation import KINDS, Selected, segments, select, split, unfiltered
from lcrag.methods.rag_r1.program import rag_r1
from lcrag.retrieval import Hit

TOKENIZER = ContextTokenizer(tiny_tokenizer(), Chat())


def question(number=0, language="en"):
    return Question(id=str(number), dataset="d", language=language, text=f"Older {number}?", answers=("A", "Alpha"))


def search(queries, languages, k):
    return [[Hit(id="1", title=query, text="1900", score=1.0, language="en")] for query in queries]


def played(*texts):
    """The episode of a writer with these texts."""
    written = iter(texts)
    program = rag_r1(question(), ("en",), wording="atlas")
    [record] = play([(question(), program)], lambda *_: next(written), search, TOKENIZER, context=900)
    return record


SEARCHING = ("<think>hm</think><search> A, B</search>", "<search> C</search>", "<think>so</think><answer> A</answer>")


def read_back(tmp_path, rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("texts", "kinds"),
    [
        (SEARCHING, ["question_to_search", "information_to_search", "information_to_answer"]),
        (SEARCHING[2:], ["question_to_answer"]),
        (("well", *SEARCHING[1:]), ["information_to_search", "information_to_answer"]),  # no action: no row
    ],
)
def test_a_trajectory_is_cut_at_every_retrieval(texts, kinds):
    rows = segments(episode_json(played(*texts)))
    assert [row["kind"] for row in rows] == kinds
    assert set(kinds) < set(KINDS)


def test_targets_hold_no_retrieved_text_and_histories_all_that_came_before(tmp_path):
    record = played(*SEARCHING)
    rows = segments(episode_json(record))
    for number, row in enumerate(rows):
        *history, target = row["turns"]
        assert target == {"by": "policy", "text": SEARCHING[number]}
        assert [turn["learn"] for turn in history if turn["by"] == "policy"] == [False] * number
        assert [turn["text"] for turn in history] == [turn.text for turn in record.turns[: 2 * number]]
        assert "1900" in history[-1]["text"] if history else row["kind"].startswith("question")
    read = read_demonstrations([read_back(tmp_path, rows)], BadRows())
    assert [[turn.learn for turn in demonstration.turns] for demonstration in read] == [
        [False] * (2 * number) + [True] for number in range(3)
    ]
    assert {demonstration.topic for demonstration in read} == {"d/0"}


def test_completions_of_the_policy_are_rows_of_their_own(tmp_path):
    by_policy = SideCompletion(None, "[user]Argue.[model]", "Because.", 2, "Argue.")
    by_others = SideCompletion("judge", "Judge.", "Yes.", 2)
    record = dataclasses.replace(played("<answer> A</answer>"), completions=(by_policy, by_others))
    rows = segments(episode_json(record))
    assert [row["kind"] for row in rows] == ["question_to_answer", "completion"]
    answered, argued = read_demonstrations([read_back(tmp_path, rows)], BadRows())
    assert (argued.opening, argued.turns[0].text) == ("Argue.", "Because.")
    assert answered.topic == argued.topic


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (SEARCHING, KEPT),
        (("<search> A</search>", "<answer> alpha</answer>"), KEPT),
        (("<search> A</search>", "<answer> B</answer>"), WRONG),
        (("<search> A</search>",) * 4 + ("no idea",), NO_ANSWER),
        (("well", "<answer> A</answer>"), INVALID),
        (("<search> a,b,c,d</search>", "<answer> A</answer>"), TOO_MANY),
        (("<search> a,,b</search>", "<answer> A</answer>"), EMPTY),
    ],
)
def test_a_demonstration_is_right_and_follows_the_format(texts, expected):
    record = played(*texts)
    [correct] = right([record], "exact_match")
    assert verdict(record, correct) == expected
    assert correct == (expected not in (WRONG, NO_ANSWER))


QUESTIONS = [question(number) for number in range(40)]
FIRST = {each.key: int(each.id) % 2 == 0 for each in QUESTIONS}  # 20 right, 20 wrong
SOLVED = {each.key: 1 + int(each.id) % 3 for each in QUESTIONS if int(each.id) in (1, 3, 5, 7)}


def test_selection_keeps_hard_questions_that_can_be_answered_and_a_quarter_of_the_rest():
    selected, again, others = (select(QUESTIONS, FIRST, SOLVED, easy_share=0.25, seed=seed) for seed in (0, 0, 1))
    assert selected == again != others
    assert len(others) == len(selected)
    wrong = [(int(choice.question.id), choice.rollouts) for choice in selected if choice.because == "wrong at first"]
    assert wrong == [(1, 2), (3, 1), (5, 3), (7, 2)]
    easy = [choice.question.key for choice in selected if choice.because == "right at first"]
    assert [FIRST[key] for key in easy] == [True] * 5
    every = unfiltered(QUESTIONS, FIRST, SOLVED, selected[:2], easy_share=0.25, seed=0)
    held_out = {choice.question.key for choice in selected[:2]}
    wanted = {key for key, right_at_first in FIRST.items() if not right_at_first} | set(easy)
    assert {choice.question.key for choice in every} == wanted - held_out


def test_the_split_keeps_versions_of_a_question_together(tmp_path):
    both = [Selected(question=question(n, code), because="", rollouts=0) for n in range(40) for code in ("en", "fi")]
    train, validation = split(both, 0.05, seed=3)
    assert (len(validation), len(train)) == (4, 76)
    assert not {choice.question.id for choice in train} & {choice.question.id for choice in validation}
    read = jsonl_questions([read_back(tmp_path, (choice.row() for choice in train))], "d")
    extra = {"selected_because": "", "rollouts_to_right": 0}
    assert read == [dataclasses.replace(choice.question, extra=extra) for choice in train]


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_impossible_shares_are_refused(share):
    with pytest.raises(UserError, match="easy_share"):
        select(QUESTIONS, FIRST, SOLVED, easy_share=share, seed=0)
    with pytest.raises(UserError, match="validation_share"):
        split([], share, seed=0)
    with pytest.raises(UserError, match="too few"):
        split([Selected(question=question(), because="", rollouts=0)], 0.5, seed=0)
