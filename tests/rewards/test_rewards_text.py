"""Normalisation: hand cases, and agreement with the plain definition over many scripts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrag.rewards import normalise, normalise_english
from lcrag.testing import plain_rewards as oracle

SCRIPTS = (
    "aAbZ éßİ 09 ,.'“„「」。？！ 　 北京東臺灣漢語 ひらカター 한국어 русский ไทย العربية বাংলা తెలుగు"
    "ﬁ Ａ１ 𝐀 😀 \u200d\u0301\t\n\x00"
)
TEXTS = st.text(alphabet=SCRIPTS, max_size=40) | st.text(max_size=20)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("  The  U.S.  dollar ", "the u s dollar"),
        ("“Curly” ‘quotes’ „low“", "curly quotes low"),
        ("臺灣", "台湾"),
        ("東京 タワー", "东京タワー"),
        ("北京。 上海", "北京上海"),
        ("北京 Beijing", "北京 beijing"),
        ("한국 원", "한국원"),
        ("ＥＵＲ　１９９９", "eur 1999"),
        ("«Рубль»", "«рубль»"),
        ("?!", ""),
    ],
)
def test_lcrl_normalisation_by_hand(text, expected):
    assert normalise(text) == expected


def test_squad_normalisation_by_hand():
    assert normalise_english("The U.S. and an A-team: Theory") == "us and ateam theory"


@given(TEXTS)
def test_both_normalisations_agree_with_their_definitions(text):
    assert normalise(text) == oracle.normalise(text)
    assert normalise_english(text) == oracle.normalise_english(text)
