"""Normalisation and comparisons of answers with golds."""

import sys
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import CHRF
from support import plain_rewards as oracle
from zhconv import zhconv

from lcrag import rewards
from lcrag.errors import UserError
from lcrag.rewards import normalise
from lcrag.rewards.matching import holds_answer
from lcrag.rewards.terms import answer_only
from lcrag.rewards.text import encoded, gram_units, is_visible, normalised, segmented, shared

# --- Normalisation ---

SCRIPTS = (
    "aAbZ éßİ 09 ,.'“„「」。？！ 　 北京東臺灣漢語 ひらカター 한국어 русский ไทย العربية বাংলা తెలుగు"
    "ﬁ Ａ１ 𝐀 😀 \u200d\u0301\t\n\x00"
)
MARKED = st.text(alphabet="aAoΣσİکกาำุ้ะন্তোাকে가각각クグ゙ﾞًُّٰ́̀̂̄̈̓҆ٔͅـيﻻ℃Ⓐ₨ ", max_size=12)
CHINESE = st.text(alphabet="么九沈默反覆發髮乾隆皇後面麵包頭髮一隻只裡里《易》。 ", max_size=12)
TEXTS = st.text(alphabet=SCRIPTS, max_size=40) | st.text(max_size=20)


def test_normalisations_by_hand():
    lcrl = {"  The  U.S. ": "the u s", "“Curly” ‘quotes’": "curly quotes", "臺灣": "台湾", "東京 タワー": "东京タワー"}
    lcrl |= {
        "北京。 上海": "北京上海",
        "北京 Beijing": "北京 beijing",
        "한국 원": "한국원",
        "ＥＵＲ　１": "eur 1",
        "«Р»": "«р»",
    }
    assert {text: normalise(text) for text in lcrl} == lcrl
    unicode = {"20 ℃": "20 °c", "«Рубль» – ¿qué?": "рубль qué", "ميلان·ميلانو، العـــربيّة؟": "ميلان ميلانو العربية"}
    assert {text: normalise(text, "unicode") for text in unicode} == unicode


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


# --- Texts that look alike ---

INVISIBLE = "\u200b\u200c\u200d\u200e\u200f\u202c\u2060\ufeff\u00ad\ufe0f\u034f\u3164\U000e0041"
DIGITS = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) == "Nd"]
FORMS = "NFC", "NFD", "NFKC", "NFKD"


@st.composite
def alike(draw):
    """Two texts that a reader cannot tell apart: their digits, dashes, case, composition or invisible signs differ."""
    text = draw(
        st.text(alphabet="aß i̇İ١৯７2-–é\u0301각かが北ؤ\u0345αΣς℃. ", min_size=1, max_size=12) | st.text(max_size=8)
    )
    canonical = unicodedata.normalize("NFD", text)
    other = "".join(draw(st.sampled_from([each, each.casefold()])) for each in canonical)
    other = unicodedata.normalize(draw(st.sampled_from(FORMS)), other)
    values = [unicodedata.decimal(each, None) for each in other]
    other = "".join(
        draw(st.sampled_from([digit for digit in DIGITS if unicodedata.decimal(digit) == value]))
        if value is not None
        else draw(st.sampled_from("-\u2010\u2011\u2013\u2212\u2796\ufe63"))
        if each in "-–"
        else each
        for each, value in zip(other, values, strict=True)
    )
    signs = st.text(alphabet=INVISIBLE, max_size=2)
    return text, "".join(draw(signs) + each for each in other) + draw(signs)


@given(st.lists(alike(), min_size=1, max_size=4), st.text(max_size=8))
def test_texts_that_look_alike_get_equal_scores(pairs, another):
    ones, others = zip(*pairs, strict=True)
    assert normalised(ones, "unicode") == normalised(others, "unicode")
    golds = [[ones[0]]] * len(ones)
    for score in (rewards.c3_recall, rewards.exact_match, rewards.flexible_exact_match):
        assert (
            score(ones, golds, normalisation="unicode").tolist()
            == score(others, golds, normalisation="unicode").tolist()
        )
    assert rewards.mixed_f1(ones, golds).tolist() == rewards.mixed_f1(others, golds).tolist()
    for one, other in pairs:
        passages = f"{another} {one} {another}", f"{another} {other} {another}"
        assert len({holds_answer([passage], [gold]) for passage in passages for gold in (one, other)}) == 1


def test_digits_and_invisible_signs_of_all_of_unicode():
    values = [str(unicodedata.decimal(digit)) for digit in DIGITS]
    assert normalised([f"{digit}{digit}" for digit in DIGITS], "unicode") == [value * 2 for value in values]
    assert all(holds_answer([f"in {digit}0"], [f"{value}0"]) for digit, value in zip(DIGITS, values, strict=True))
    signs = [chr(code) for code in range(sys.maxunicode + 1) if oracle.is_invisible(chr(code))]
    assert set(normalised([f"e{sign}\u0301" for sign in signs], "unicode")) == {"é"}
    assert not any(map(is_visible, [*signs, " ", "\u2800", "\u0301", ""]))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Helsinki", "Helsinki\u200f"),
        ("১৯১২ সালে", "1912 সালে"),
        ("-40", "\u221240"),
        ("Zusammenarbeit", "Zusammen\u00adarbeit"),
        ("می\u200cخواهم", "میخواهم"),
        ("STRASSE", "straße"),
        ("O'Brien", "OʼBrien"),
        ("1/8", "1⁄8"),
        ("Oulu", "Oulu\u2800"),
    ],
)
def test_the_published_normalisation_stays_as_it_was(one, other):
    assert rewards.exact_match([one], [[other]]).tolist() == [0]
    assert rewards.exact_match([one], [[other]], normalisation="unicode").tolist() == [1]
    assert holds_answer([f"( {one} )"], [other])


# --- Comparisons ---

NAMES = ["c3_f", "c3_recall", "c3_recall_bergen", "exact_match", "flexible_exact_match"]
NAMES += ["squad_accuracy", "squad_exact_match", "token_f1"]
ALPHABETS = [
    "ab ",
    "aA the.",
    "北京東上海 、",
    "ひカ한국 ",
    "абв —",
    "กขค",
    "ابت ؟",
    "é\u0301ß İ",
    "😀👩\u200d🚀\U0010ffff\x00 ",
]
WORDS = st.one_of([st.text(alphabet=alphabet, max_size=12) for alphabet in ALPHABETS]) | st.text(max_size=6)
LONG = st.builds(lambda text, times: text * times, WORDS, st.integers(1, 9))
BATCHES = st.lists(st.tuples(st.none() | LONG, st.lists(LONG, max_size=3)), max_size=6)


@pytest.mark.parametrize("name", NAMES)
@given(batch=BATCHES)
def test_agrees_with_plain_python(name, batch):
    predictions, golds = [p for p, _ in batch], [g for _, g in batch]
    expected = getattr(oracle, name)(predictions, golds)
    np.testing.assert_allclose(getattr(rewards, name)(predictions, golds), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("normalisation", ["lcrl", "unicode"])
@pytest.mark.parametrize("short_gold", ["zero", "contained"])
@given(batch=BATCHES)
def test_short_golds_and_normalisations_agree_with_plain_python(short_gold, normalisation, batch):
    predictions, golds = [p for p, _ in batch], [g for _, g in batch]
    expected = oracle.c3_recall(predictions, golds, short_gold, normalisation)
    assert rewards.c3_recall(predictions, golds, short_gold, normalisation).tolist() == expected


WITHOUT_REPEATS = st.text(alphabet="abcdefgкл北京กข", min_size=3, max_size=12).filter(
    lambda text: len({*text}) == len(text)
)


@given(prediction=WITHOUT_REPEATS, golds=st.lists(WITHOUT_REPEATS, min_size=1, max_size=3))
def test_c3_f_is_chrf_of_one_order_where_no_gram_repeats_and_no_space_is(prediction, golds):
    """sacreBLEU averages over orders and counts multisets without spaces; texts shorter than a gram are left out."""
    chrf, trigrams = CHRF(char_order=3, word_order=0, beta=1), slice(6, 9)

    def trigram_score(gold):
        [statistics] = chrf._extract_corpus_statistics([prediction], [[gold]])
        written, wanted, common = statistics[trigrams]
        return 2 * common / (written + wanted)

    expected = max(map(trigram_score, golds))
    assert rewards.c3_f([prediction], [golds]).tolist() == pytest.approx([expected], abs=1e-15)


@pytest.mark.parametrize(
    ("prediction", "gold", "scores"),
    [("in 2012", "12", [0, 0, 1]), ("12", "12", [1, 0, 1]), ("北京市", "北京", [0, 0, 1]), ("euro", "?!", [0, 0, 0])],
)
def test_a_short_gold_by_hand(prediction, gold, scores):
    found = [rewards.c3_recall([prediction], [[gold]], how)[0] for how in ("whole", "zero", "contained")]
    assert found == scores


@pytest.mark.parametrize(
    ("name", "prediction", "golds", "expected"),
    [
        ("c3_recall", "banana", ["ananas"], 2 / 3),
        ("c3_recall", "臺北市", ["台北市", "x"], 1.0),
        ("c3_f", "banana", ["ananas"], 2 / 3),
        ("c3_f", "the euro", ["euro", "dollar"], 1 / 2),
        ("c3_f", "臺北", ["台北"], 1.0),
        ("c3_f", "", [""], 0.0),
        ("c3_recall", None, ["euro"], 0.0),
        ("c3_recall", "", [""], 0.0),
        ("c3_recall", "\u200e", ["\u200e"], 0.0),
        ("exact_match", "\u3164", ["\u3164"], 0.0),
        ("c3_recall", "euro", [], 0.0),
        ("c3_recall_bergen", "aaaa", ["aaaaaa"], 1 / 2),
        ("c3_recall_bergen", "us dollar", ["of dollar us"], 5 / 6),
        ("exact_match", "  EURO! ", ["dollar", "euro"], 1.0),
        ("exact_match", "the euro", ["euro"], 0.0),
        ("flexible_exact_match", "it is the Euro.", ["euro"], 1.0),
        ("token_f1", "the cat sat", ["cat sat down"], 0.8),
        ("token_f1", "x x b b", ["b c"], 1 / 3),
        ("squad_exact_match", "The Euro.", ["an euro"], 1.0),
        ("squad_exact_match", "the", ["a"], 1.0),  # as in SQuAD's script, which leaves nothing of either
        ("squad_exact_match", "A+", ["A+"], 1.0),
        ("squad_exact_match", "", ["A+"], 0.0),
        ("squad_exact_match", "B", ["---"], 0.0),
        ("squad_accuracy", ")", [")"], 1.0),
        ("squad_accuracy", "anything", [")"], 0.0),
        ("token_f1", "---", ["Paris", "---"], 1.0),
        ("c3_recall_bergen", "água", ["a\u0301gua"], 1 / 3),  # an article only to a module without marks in words
        ("squad_accuracy", "It is the U.S.A.", ["USA"], 1.0),
    ],
)
def test_by_hand(name, prediction, golds, expected):
    assert getattr(rewards, name)([prediction], [golds]) == pytest.approx([expected], abs=1e-15)


VERDICT = st.sampled_from(["Yes", "no way", "No.", "noanswer", "yes and no", "the no", "maybe", ""])


@given(batch=st.lists(st.tuples(st.none() | VERDICT, st.lists(VERDICT, max_size=3)), max_size=6))
def test_verdicts_are_right_as_a_whole_only(batch):
    """As in the scripts of HotpotQA and 2WikiMultiHopQA; SQuAD's and MuSiQue's make no exception of them."""
    predictions, golds = [p for p, _ in batch], [g for _, g in batch]
    scores = rewards.token_f1(predictions, golds, rewards.VERDICTS)
    np.testing.assert_allclose(scores, oracle.token_f1(predictions, golds, rewards.VERDICTS), rtol=0, atol=1e-15)
    assert rewards.token_f1(["no way", "no"], [["no"], ["no", "yes"]], rewards.VERDICTS).tolist() == [0, 1]
    assert rewards.token_f1(["no way"], [["no"]]) == pytest.approx([2 / 3])


def test_grams_that_a_hash_of_32_bits_could_confuse_stay_apart():
    """Neighbouring code points in every place of the gram, across the whole of Unicode."""
    points = [0x21, 0x421, 0x10021, 0x10FFFD, 0x10FFFF]
    texts = [chr(a) + chr(b) + chr(c) for a in points for b in points for c in points]
    groups = [text for one in texts for text in (one, *texts)]
    found, _ = shared(gram_units(encoded(groups), np.full(len(texts), len(texts) + 1)))
    assert np.array_equal(found.reshape(len(texts), -1)[:, 1:], np.eye(len(texts), dtype=int))


@pytest.mark.parametrize(("size", "dtype"), [(4, np.uint32), (1 << 16, np.uint64)])
def test_grams_fit_both_dtypes(size, dtype):
    """Numbers of the texts of a group are part of a gram's number."""
    alphabet = "".join(map(chr, range(0x400, 0x450)))
    units = gram_units(encoded(["banana", "ananas", "an", alphabet, *[""] * (size - 4)]), np.array([size]))
    assert units.numbers.dtype == dtype
    found, wanted = shared(units)
    assert (found[:4].tolist(), wanted[:4].tolist()) == ([0, 2, 0, 0], [3, 3, 1, 78])


def test_a_long_text_among_short_ones_is_counted():
    long = "".join(map(chr, range(0x4E00, 0x4E00 + 20_000)))
    texts = [text for each in ["abcd"] * 40 + [long] for text in (each, each)]
    found, wanted = shared(gram_units(encoded(texts), np.full(41, 2)))
    assert found[1::2].tolist() == wanted[::2].tolist() == [2] * 40 + [19_998]


def test_mistakes_are_named():
    for golds in ([], ["a"]):  # one string in place of a list
        with pytest.raises(ValueError, match="golds"):
            rewards.c3_recall(["a"], golds)
    for options in ({"short_gold": "none"}, {"normalisation": "nfc"}):
        with pytest.raises(UserError):
            rewards.c3_recall(["a"], [["a"]], **options)


def test_mixed_f1_counts_words_of_every_script():
    pairs = {
        "北京市": "北京",
        "《红楼梦》": "红楼梦",
        "東京タワー": "東京",
        "ＥＵＲ": "EUR",
        "대한민국 서울": "서울",
        "": "利马",
    }
    scores = rewards.mixed_f1(list(pairs), [[gold] for gold in pairs.values()])
    assert scores.tolist() == pytest.approx([0.8, 1.0, 4 / 7, 1.0, 2 / 3, 0.0])


@pytest.mark.parametrize(
    ("language", "prediction", "gold", "expected"),
    [
        *(("es", "el 1891", "1891", 1.0), ("de", "der Krakau", "Krakau", 1.0), ("ar", "الرياض", "رياض", 1.0)),
        *(("vi", "những người", "người", 1.0), ("en", "The Krakau", "krakau", 1.0), ("de", "Die", "das", 1.0)),
        *(("de", "Vitamin A", "Vitamin", 2 / 3), ("fi", "the Krakau", "Krakau", 2 / 3)),
        *(("zh", "北京市", "北京", 0.8), ("hi", "एक राजा", "राजा", 2 / 3)),
    ],
)
def test_articles_are_those_of_the_answers_language(language, prediction, gold, expected):
    assert rewards.mixed_f1(["x", prediction], [["y"], [gold]], ["en", language]).tolist() == pytest.approx(
        [0, expected]
    )
    term = answer_only("mixed_f1")
    episodes = rewards.Episodes(answers=[prediction], golds=[(gold,)], group_ids=np.zeros(1, int), languages=[language])
    assert term(episodes)["total"].tolist() == pytest.approx([expected])


@given(st.lists(st.text(st.characters(max_codepoint=127)), min_size=1, max_size=4), st.data())
def test_mixed_f1_of_ascii_texts_is_token_f1(predictions, data):
    golds = [[data.draw(st.sampled_from(predictions))] for _ in predictions]
    assert rewards.mixed_f1(predictions, golds).tolist() == rewards.token_f1(predictions, golds).tolist()
    assert [segmented(text) for text in predictions] == predictions


@pytest.mark.parametrize(
    ("passage", "golds", "held"),
    [
        ("It was founded in 1919.", ["191"], False),
        ("the Euro came in 1999–2002", ["1999"], True),
        ("He served in the US army", ["U.S."], True),
        ("He served in the U.S. army", ["US"], True),
        ("northern Ireland", ["no"], False),
        ("通貨はユーロです。", ["ユーロ"], True),
        ("สกุลเงินคือยูโร", ["ยูโร"], True),
        ("세종대왕은 한글을 만들었다", ["한글"], True),
        ("anything", ["the", "…", ""], False),
    ],
)
def test_answers_in_passages(passage, golds, held):
    assert holds_answer(["nothing here", passage], golds) is held
    assert holds_answer([], golds) is False


words = st.lists(st.sampled_from("paris rome is in 1999 not france the".split()), min_size=1, max_size=8)


@given(words, words)
def test_it_is_a_run_of_words(passage, gold):
    kept, wanted = ([word for word in each if word != "the"] for each in (passage, gold))
    places = range(len(kept) - len(wanted) + 1)
    expected = bool(wanted) and any(kept[start : start + len(wanted)] == wanted for start in places)
    assert holds_answer([" ".join(passage)], [" ".join(gold)]) is expected
