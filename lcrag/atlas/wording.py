"""What the atlas says in each language: labels, questions, search queries and passages."""

from lcrag.atlas import wording_scripts, wording_spaced

WORDING: dict[str, dict[str, tuple[str, str]]] = wording_spaced.WORDING | wording_scripts.WORDING

UNKNOWN: dict[str, str] = {
    "en": "unknown",
    "ar": "غير معروف",
    "fi": "tuntematon",
    "fr": "inconnu",
    "ja": "不明",
    "it": "sconosciuto",
    "ru": "неизвестно",
    "zh": "未知",
    "de": "unbekannt",
    "ko": "알 수 없음",
    "es": "desconocido",
    "pt": "desconhecido",
    "th": "ไม่ทราบ",
}


def question_text(language: str, key: str, name: str) -> str:
    """The question of a relation, or of a composition "first+second", about `name`."""
    return WORDING[language][key][1].format(name=name)


def label(language: str, relation: str) -> str:
    """The words that name a relation in passages and queries; unique among relations of one kind of subject."""
    return WORDING[language][relation][0]


def query_text(language: str, relation: str, name: str) -> str:
    """The short search query that finds the passage of a fact."""
    return f"{name} {label(language, relation)}"


def passage_text(language: str, relation: str, value: str) -> str:
    """The passage of a fact without its title, in the manner of an info box: the label, then the value."""
    return f"{label(language, relation)}: {value}"
