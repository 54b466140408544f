"""Kivari and Toqal, languages that no model has met: English with other words (Translate-R1, section 3.4)."""

from lcrag.data.constructed.language import (
    CONSTRUCTED,
    ENGLISH,
    KIVARI,
    TOQAL,
    ConstructedLanguage,
    constructed_language,
    constructed_questions,
)
from lcrag.data.constructed.substitution import WordSubstitution
from lcrag.data.constructed.words import read_word_list, vocabulary_of, write_word_list

__all__ = [
    "CONSTRUCTED",
    "ENGLISH",
    "KIVARI",
    "TOQAL",
    "ConstructedLanguage",
    "WordSubstitution",
    "constructed_language",
    "constructed_questions",
    "read_word_list",
    "vocabulary_of",
    "write_word_list",
]
