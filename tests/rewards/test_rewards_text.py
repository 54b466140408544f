"""Normalisation: hand cases, and agreement with the plain definition over many scripts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import plain_rewards as oracle
from zhconv import zhconv

from lcrag.rewards import normalise, normalise_english
from lcrag.rewards.code_points import normalised

SCRIPTS = (
    "aAbZ éßİ 09 ,.'“„「」。？！ 　 北京東臺灣漢語 ひらカター 한국어 русский ไทย العربية বাংলা తెలుగు"
    "ﬁ Ａ１ 𝐀 😀 \u200d\u0301\t\n\x00"
)
MARKED = st.text(alphabet="aAoΣσİکกาำุ้ะন্তোাকে가각각クグ゙ﾞًُّٰ́̀̂̄̈̓҆ٔͅـيﻻ℃Ⓐ₨ ", max_size=12)
CHINESE = st.text(alphabet="么九沈默反覆發髮乾隆皇後面麵包頭髮一隻只裡里《易》。 ", max_size=12)
TEXTS = st.text(alphabet=SCRIPTS, max_size=40) | st.text(max_size=20)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20 ℃", "20 °c"),
        ("«Рубль» – ¿qué?", "рубль qué"),
        ("ميلان·ميلانو، العـــربيّة؟", "ميلان ميلانو العربية"),
        ("$5 + 3", "5 3"),
    ],
)
def test_unicode_normalisation_by_hand(text, expected):
    assert normalise(text, "unicode") == expected


@pytest.mark.parametrize("normalisation", ["lcrl", "unicode"])
@given(texts=st.lists(st.none() | TEXTS | MARKED | CHINESE, max_size=4))
def test_a_batch_is_normalised_as_its_texts_are(normalisation, texts):
    expected = [oracle.normalise(text, normalisation) for text in texts]
    assert normalised(texts, normalisation) == expected
    assert [normalise(text or "", normalisation) for text in texts] == expected


@pytest.mark.parametrize("normalisation", ["lcrl", "unicode"])
def test_every_code_point_is_normalised_alone_and_between_letters(normalisation):
    texts = [chr(code) for code in range(0x20000)] + [f"a{chr(code)}\u0301 北{chr(code)}" for code in range(0x3400)]
    assert normalised(texts, normalisation) == [normalise(text, normalisation) for text in texts]


def test_every_chinese_phrase_is_converted_in_context():
    phrases = [old for old in zhconv.getdict("zh-cn") if len(old) > 1]
    texts = [f"{one}{other[1:]} {other}" for one, other in zip(phrases, phrases[1:], strict=False)]
    assert normalised(texts) == [normalise(text) for text in texts]


@given(TEXTS)
def test_squad_normalisation_agrees_with_its_definition(text):
    assert normalise_english(text) == oracle.normalise_english(text)
    assert normalise_english("The U.S. and an A-team: Theory") == "us and ateam theory"
