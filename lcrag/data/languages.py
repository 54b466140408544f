"""The languages of questions and collections."""

import dataclasses
from collections.abc import Iterable

from lcrag.errors import lookup


@dataclasses.dataclass(frozen=True, kw_only=True)
class Language:
    """A language."""

    code: str  # of ISO 639-1, else of ISO 639-3
    name: str  # in English, as used in prompts
    endonym: str  # its name in itself
    relative: str  # code of a larger language close by family, script or region, for prompts in a pivot language
    example: str  # an example answer for prompts
    spaces: bool = True  # whether its script separates words; otherwise corpora are cut by characters


_ALL = (
    Language(code="en", name="English", endonym="English", relative="fr", example="Beijing"),
    Language(code="ar", name="Arabic", endonym="العربية", relative="fr", example="بكين"),
    Language(code="fi", name="Finnish", endonym="suomi", relative="ru", example="Peking"),
    Language(code="fr", name="French", endonym="français", relative="it", example="Pékin"),
    Language(code="ja", name="Japanese", endonym="日本語", spaces=False, relative="zh", example="北京"),
    Language(code="it", name="Italian", endonym="italiano", relative="fr", example="Pechino"),
    Language(code="ru", name="Russian", endonym="русский", relative="fr", example="Пекин"),
    Language(code="zh", name="Chinese", endonym="中文", spaces=False, relative="ja", example="北京"),
    Language(code="de", name="German", endonym="Deutsch", relative="fr", example="Peking"),
    Language(code="ko", name="Korean", endonym="한국어", relative="ja", example="베이징"),
    Language(code="es", name="Spanish", endonym="español", relative="fr", example="Pekín"),
    Language(code="pt", name="Portuguese", endonym="português", relative="es", example="Pequim"),
    Language(code="th", name="Thai", endonym="ไทย", spaces=False, relative="zh", example="ปักกิ่ง"),
    # beyond LcRL's MKQA: the other languages of XOR-TyDi QA, XQuAD and MKQA
    Language(code="bn", name="Bengali", endonym="বাংলা", relative="hi", example="বেইজিং"),
    Language(code="te", name="Telugu", endonym="తెలుగు", relative="hi", example="బీజింగ్"),
    Language(code="da", name="Danish", endonym="dansk", relative="de", example="Beijing"),
    Language(code="el", name="Greek", endonym="Ελληνικά", relative="fr", example="Πεκίνο"),
    Language(code="he", name="Hebrew", endonym="עברית", relative="ar", example="בייג׳ינג"),
    Language(code="hi", name="Hindi", endonym="हिन्दी", relative="fr", example="बीजिंग"),
    Language(code="hu", name="Hungarian", endonym="magyar", relative="de", example="Peking"),
    Language(code="km", name="Khmer", endonym="ខ្មែរ", spaces=False, relative="th", example="ប៉េកាំង"),
    Language(code="ms", name="Malay", endonym="Melayu", relative="zh", example="Beijing"),
    Language(code="nl", name="Dutch", endonym="Nederlands", relative="de", example="Peking"),
    Language(code="no", name="Norwegian", endonym="norsk", relative="de", example="Beijing"),
    Language(code="pl", name="Polish", endonym="polski", relative="ru", example="Pekin"),
    Language(code="ro", name="Romanian", endonym="română", relative="it", example="Beijing"),
    Language(code="sv", name="Swedish", endonym="svenska", relative="de", example="Peking"),
    Language(code="tr", name="Turkish", endonym="Türkçe", relative="de", example="Pekin"),
    Language(code="vi", name="Vietnamese", endonym="Tiếng Việt", relative="zh", example="Bắc Kinh"),
    # Translate-R1's languages with few digital speakers, and those that it holds out
    Language(code="am", name="Amharic", endonym="አማርኛ", relative="ar", example="ቤይጂንግ"),
    Language(code="ay", name="Aymara", endonym="Aymar aru", relative="es", example="Pekin"),
    Language(code="gn", name="Guarani", endonym="avañe’ẽ", relative="es", example="Pekín"),
    Language(code="ha", name="Hausa", endonym="Hausa", relative="ar", example="Beijing"),
    Language(code="rw", name="Kinyarwanda", endonym="Ikinyarwanda", relative="sw", example="Beijing"),
    Language(code="lg", name="Luganda", endonym="Luganda", relative="sw", example="Beijing"),
    Language(code="qu", name="Quechua", endonym="Runasimi", relative="es", example="Pekin"),
    Language(code="so", name="Somali", endonym="Soomaali", relative="ar", example="Beijing"),
    Language(code="ug", name="Uyghur", endonym="ئۇيغۇرچە", relative="tr", example="بېيجىڭ"),
    Language(code="wo", name="Wolof", endonym="Wolof", relative="fr", example="Pekin"),
    Language(code="yo", name="Yoruba", endonym="Yorùbá", relative="ha", example="Beijing"),
    Language(code="zu", name="Zulu", endonym="isiZulu", relative="sw", example="Beijing"),
    Language(code="bm", name="Bambara", endonym="bamanankan", relative="fr", example="Pekin"),
    Language(code="ee", name="Ewe", endonym="Eʋegbe", relative="fr", example="Beijing"),
    Language(code="ln", name="Lingala", endonym="lingála", relative="fr", example="Pekin"),
    Language(code="tw", name="Twi", endonym="Twi", relative="fr", example="Beijing"),
    Language(code="ig", name="Igbo", endonym="Igbo", relative="ha", example="Beijing"),
    Language(code="sn", name="Shona", endonym="chiShona", relative="sw", example="Beijing"),
    Language(code="st", name="Sesotho", endonym="Sesotho", relative="zu", example="Beijing"),
    Language(code="om", name="Oromo", endonym="Oromoo", relative="am", example="Beijing"),
    Language(code="tn", name="Tswana", endonym="Setswana", relative="zu", example="Beijing"),
    Language(code="mi", name="Maori", endonym="te reo Māori", relative="ms", example="Beijing"),
    # Translate-R1's constructed languages, with ISO 639's private-use codes; see `lcrag.data.constructed`
    Language(code="qki", name="Kivari", endonym="Kivari", relative="qto", example="Beijing"),
    Language(code="qto", name="Toqal", endonym="Toqal", relative="qki", example="Beijing"),
    # the other languages of MGSM and Global-MMLU
    Language(code="sw", name="Swahili", endonym="Kiswahili", relative="ar", example="Beijing"),
    Language(code="cs", name="Czech", endonym="čeština", relative="pl", example="Peking"),
    Language(code="fa", name="Persian", endonym="فارسی", relative="ar", example="پکن"),
    Language(code="fil", name="Filipino", endonym="Filipino", relative="ms", example="Beijing"),
    Language(code="id", name="Indonesian", endonym="Indonesia", relative="ms", example="Beijing"),
    Language(code="ky", name="Kyrgyz", endonym="кыргызча", relative="ru", example="Пекин"),
    Language(code="lt", name="Lithuanian", endonym="lietuvių", relative="pl", example="Pekinas"),
    Language(code="mg", name="Malagasy", endonym="Malagasy", relative="fr", example="Beijing"),
    Language(code="ne", name="Nepali", endonym="नेपाली", relative="hi", example="बेइजिङ"),
    Language(code="ny", name="Chichewa", endonym="Chichewa", relative="sw", example="Beijing"),
    Language(code="si", name="Sinhala", endonym="සිංහල", relative="hi", example="බෙයිජිං"),
    Language(code="sr", name="Serbian", endonym="српски", relative="ru", example="Пекинг"),
    Language(code="uk", name="Ukrainian", endonym="українська", relative="ru", example="Пекін"),
)

LANGUAGES: dict[str, Language] = {language.code: language for language in _ALL}

# LcRL trains on the first eight languages of MKQA and tests zero-shot on five more (Section 4.1).
LCRL_TRAINING: tuple[str, ...] = ("en", "ar", "fi", "fr", "ja", "it", "ru", "zh")
LCRL_ZERO_SHOT: tuple[str, ...] = ("de", "ko", "es", "pt", "th")
LCRL_LANGUAGES: tuple[str, ...] = LCRL_TRAINING + LCRL_ZERO_SHOT

# Its languages of XOR-TyDi QA; the validation split, on which it is tested, has no English.
XOR_TYDI_TRAINING: tuple[str, ...] = ("en", "fi", "ja", "ko", "ru", "ar")
XOR_TYDI_TEST: tuple[str, ...] = ("fi", "ja", "ko", "ru", "ar", "bn", "te")


def language_of(code: str) -> Language:
    """Returns the language with a code."""
    return lookup(LANGUAGES, code, "language")


def known_languages(
    codes: Iterable[str] | None, among: tuple[str, ...] = LCRL_LANGUAGES, dataset: str = ""
) -> tuple[str, ...]:
    """Returns `codes` as a tuple, if all are `among` the languages of a data set; None: all of those."""
    chosen = among if codes is None else tuple(codes)
    for code in chosen:
        lookup(dict.fromkeys(among), code, f"{dataset} question in the language" if dataset else "language")
    return chosen
