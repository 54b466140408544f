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
from lcrag.methods.rag_r1.curation import (
    INFORMATION_ANSWER,
    INFORMATION_SEARCH,
    QUESTION_ANSWER,
    QUESTION_SEARCH,
    Selected,
    segments,
    select,
    split,
)
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


@pytest.mark.parametrize(
    ("texts", "kinds"),
    [
        (SEARCHING, [QUESTION_SEARCH, INFORMATION_SEARCH, INFORMATION_ANSWER]),
        (["<answer> A</answer>"], [QUESTION_ANSWER]),
        (SEARCHING[1:], [QUESTION_SEARCH, INFORMATION_ANSWER]),
    ],
)
def test_a_trajectory_is_cut_at_every_retrieval(texts, kinds):
    assert [row["kind"] for row in segments(episode_json(played(*texts)))] == kinds


def test_targets_hold_no_retrieved_text_and_histories_all_that_came_before(tmp_path):
    record = played(*SEARCHING)
    rows = segments(episode_json(record))
    for number, row in enumerate(rows):
        *history, target = row["turns"]
        assert target == {"by": "policy", "text": SEARCHING[number]}
        assert [turn["learn"] for turn in history if turn["by"] == "policy"] == [False] * number
        assert [turn["text"] for turn in history] == [turn.text for turn in record.turns[: 2 * number]]
        assert "1900" in history[-1]["text"] if history else row["kind"].startswith("question")
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = read_demonstrations([path], BadRows())
    assert [[turn.learn for turn in each.turns] for each in read] == [[False] * (2 * n) + [True] for n in range(3)]
    assert {each.topic for each in read} == {"d/0"}


def test_completions_of_the_policy_are_rows_of_their_own(tmp_path):
    own = SideCompletion(None, "[user]Argue.[model]", "Because.", 2, "Argue.")
    others = SideCompletion("judge", "Judge.", "Yes.", 2)
    record = dataclasses.replace(played("<answer> A</answer>"), completions=(own, others))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in segments(episode_json(record))))
    answered, argued = read_demonstrations([tmp_path / "rows.jsonl"], BadRows())
    assert (argued.opening, argued.turns[0].text) == ("Argue.", "Because.")
    assert answered.topic == argued.topic


def test_steps_that_are_no_action_belong_to_the_history_only():
    rows = segments(episode_json(played("well", "<search> A</search>", "<answer> A</answer>")))
    assert [row["kind"] for row in rows] == [INFORMATION_SEARCH, INFORMATION_ANSWER]
    assert rows[0]["turns"][0] == {"by": "policy", "text": "well", "learn": False}


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


def test_unknown_comparisons_are_refused():
    with pytest.raises(UserError, match="there is no answer reward 'guess'"):
        right([played("<answer> A</answer>")], "guess")


QUESTIONS = [question(number) for number in range(40)]
FIRST = {each.key: int(each.id) % 2 == 0 for each in QUESTIONS}  # 20 right, 20 wrong
SOLVED = {each.key: 1 + int(each.id) % 3 for each in QUESTIONS if int(each.id) in (1, 3, 5, 7)}


def test_selection_keeps_hard_questions_that_can_be_answered_and_a_quarter_of_the_rest():
    selected = select(QUESTIONS, FIRST, SOLVED, easy_share=0.25, seed=0)
    wrong = [(int(each.question.id), each.rollouts) for each in selected if each.because == "wrong at first"]
    easy = [FIRST[each.question.key] for each in selected if each.because == "right at first"]
    assert wrong == [(1, 2), (3, 1), (5, 3), (7, 2)]
    assert easy == [True] * 5
    assert selected == select(QUESTIONS, FIRST, SOLVED, easy_share=0.25, seed=0)
    others = select(QUESTIONS, FIRST, SOLVED, easy_share=0.25, seed=1)
    assert others != selected
    assert len(others) == len(selected)


def test_the_split_keeps_versions_of_a_question_together(tmp_path):
    both = [Selected(question=question(n, code), because="", rollouts=0) for n in range(40) for code in ("en", "fi")]
    train, validation = split(both, 0.05, seed=3)
    assert (len(validation), len(train)) == (4, 76)
    assert not {each.question.id for each in train} & {each.question.id for each in validation}
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(each.row()) + "\n" for each in train))
    read = jsonl_questions([path], "d")
    assert [(each.id, each.language, each.answers) for each in read] == [
        (each.question.id, each.question.language, each.question.answers) for each in train
    ]
    assert read[0].extra == {"selected_because": "", "rollouts_to_right": 0}


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_shares_outside_0_to_1_are_refused(share):
    with pytest.raises(UserError, match="easy_share"):
        select(QUESTIONS, FIRST, SOLVED, easy_share=share, seed=0)
    with pytest.raises(UserError, match="validation_share"):
        split([], share, seed=0)


def test_too_few_questions_to_split_are_refused():
    with pytest.raises(UserError, match="too few to keep some for validation"):
        split([Selected(question=question(), because="", rollouts=0)], 0.5, seed=0)
