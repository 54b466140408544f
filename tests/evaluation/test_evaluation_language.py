"""The rule of the correct-language rate, clause by clause."""

import numpy as np
import pytest

from lcrag.evaluation import Answered, correct_language

LANGUAGES = ("en", "ar", "fi", "fr", "ja", "it", "ru", "zh", "de", "ko", "es", "pt", "th")


def asked(language, answer, golds=("nothing alike",), question_id="q"):
    return Answered(question_id=question_id, dataset="atlas", language=language, answer=answer, golds=golds)


@pytest.mark.parametrize(
    ("language", "answer"),
    [
        ("en", None),
        ("en", ""),
        ("fr", "1999"),
        ("th", "EUR"),
        ("ru", "F-16"),
        ("fr", "Berlin"),
        ("ja", "日本"),
        ("en", "?!"),
    ],
)
def test_not_scored(language, answer):
    assert np.isnan(correct_language([asked(language, answer)], LANGUAGES)).all()


@pytest.mark.parametrize(
    ("language", "answer", "expected"),
    [
        ("ru", "рубль", 1),
        ("en", "рубль", 0),
        ("th", "บาท", 1),
        ("ko", "대한민국 원", 1),
        ("zh", "アメリカドル", 0),
        ("ja", "米ドル", 1),
        ("zh", "Renminbi yuan", 0),
        ("fr", "le dollar des États-Unis d'Amérique", 1),
        ("de", "le dollar des États-Unis d'Amérique", 0),
        ("fi", "Yhdysvaltain dollari on sen valuutta", 1),
    ],
)
def test_by_script_and_identifier(language, answer, expected):
    assert correct_language([asked(language, answer)], LANGUAGES).tolist() == [expected]


def test_golds_judge_names_before_any_identifier():
    versions = [asked("fr", "Japan", ("Japon",)), asked("en", "Japan", ("Japan",)), asked("de", "Japan!", ("Japan",))]
    assert correct_language(versions, LANGUAGES).tolist() == [0, 1, 1]
    unrelated = [asked("fr", "Japan", ("Japon",)), asked("en", "Japan", ("Japan",), question_id="other")]
    assert np.isnan(correct_language(unrelated, LANGUAGES)[0])


def test_a_language_that_cldr_or_the_identifier_do_not_know_is_no_crash():
    unknown = [asked(code, "some longer answer in Latin letters") for code in ("xx", "qki")]
    assert np.isnan(correct_language(unknown, LANGUAGES)).all()
