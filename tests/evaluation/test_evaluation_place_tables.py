"""The table of one evaluation: which lines and columns it has, and what they say."""

import dataclasses
import math

import pytest

from lcrag.evaluation import Answered, evaluate, place_tables

METRICS = ("exact_match", "correct_language", "searches")


def answered(language, number, *, right=True, dataset="atlas", subsets=()):
    return Answered(
        question_id=str(number),
        dataset=dataset,
        language=language,
        answer="1999" if right else "2000",
        golds=("1999",),
        searches=2,
        subsets=subsets,
    )


def rows(questions, *, seed=0, seen=("en",)):
    return evaluate(questions, method="LcRL, greedy", model="tiny", split="held_out", seed=seed, seen_languages=seen)


def lines(table):
    return [[[cell.text for cell in line] for line in section] for section in table.sections]


TWO_LANGUAGES = [
    answered("en", 0, subsets=("two_hops",)),
    answered("en", 1, right=False),
    answered("fi", 0),
    answered("fi", 1),
]


def test_groups_languages_and_parts():
    [table] = place_tables(rows(TWO_LANGUAGES), METRICS)
    assert table.title == "LcRL, greedy: atlas, held_out"
    assert table.header == ("", "answers", "EM", "searches"), "no answer is of a kind whose language can be told"
    groups, languages, parts = lines(table)
    assert [line[0] for line in groups] == ["all languages", "trained on", "zero-shot"]
    assert groups[0][1:] == ["4", ".750 ±.250", "2.00 ±.000"]
    assert [line[:2] for line in languages] == [["en", "2"], ["fi", "2"]] and parts[0][:2] == ["two hops", "1"]
    assert parts[0][2] == "1.00", "a single question has no error"


@pytest.mark.parametrize("seen", [(), ("en",)])
def test_lines_that_would_repeat_others_are_left_out(seen):
    [table] = place_tables(rows([answered("en", number) for number in range(3)], seen=seen), METRICS)
    assert [[line[0] for line in section] for section in lines(table)] == [["all languages"]]


def test_every_data_set_has_a_table_and_inference_runs_are_averaged():
    questions = [
        answered("en", number, right=number > 1, dataset=name) for name in ("nq", "pop") for number in range(4)
    ]
    again = [dataclasses.replace(each, answer="1999") for each in questions]
    first, second = place_tables([*rows(questions), *rows(again, seed="0, run 2")], ["exact_match"])
    assert [table.title.partition(": ")[2] for table in (first, second)] == ["nq, held_out", "pop, held_out"]
    assert lines(first)[0][0][1:] == ["8", ".750 ±.250"]


def test_the_time_is_told():
    found = rows(TWO_LANGUAGES)
    whole = next(row for row in found if row.metric == "searches" and row.language == "all")
    timed = dataclasses.replace(whole, metric="seconds_per_question", value=0.25, standard_error=math.nan)
    [table] = place_tables([*found, timed], METRICS)
    assert table.note == "± is one standard error. 0.250 seconds a question."
