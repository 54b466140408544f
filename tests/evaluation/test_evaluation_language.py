"""The rule of the correct-language rate, clause by clause."""

import numpy as np
import pytest
from evaluation_trials import asked

from lcrag.evaluation import correct_language

LANGUAGES = ("en", "ar", "fi", "fr", "ja", "it", "ru", "zh", "de", "ko", "es", "pt", "th")


@pytest.mark.parametrize(
    ("language", "answer", "expected"),
    [
        ("en", None, np.nan),
        ("en", "", np.nan),
        ("fr", "1999", np.nan),
        ("th", "EUR", np.nan),
        ("ru", "F-16", np.nan),
        ("fr", "Berlin", np.nan),
        ("ja", "日本", np.nan),
        ("en", "?!", np.nan),
        ("xx", "some longer answer in Latin letters", np.nan),  # unknown to CLDR
        ("qki", "some longer answer in Latin letters", np.nan),
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
    scores = correct_language([asked(0, language, answer, ("nothing alike",))], LANGUAGES)
    np.testing.assert_array_equal(scores, [expected])


def test_golds_decide_about_names_before_any_identifier():
    versions = [
        asked(0, "fr", "Japan", ("Japon",)),
        asked(0, "en", "Japan", ("Japan",)),
        asked(0, "de", "Japan!", ("Japan",)),
    ]
    assert correct_language(versions, LANGUAGES).tolist() == [0, 1, 1]
    unrelated = [asked(0, "fr", "Japan", ("Japon",)), asked(1, "en", "Japan", ("Japan",))]
    assert np.isnan(correct_language(unrelated, LANGUAGES)[0])
