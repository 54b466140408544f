"""How each natural language puts the comprehension questions, and what it calls what they are about.

A place in braces is filled with one word, so that a sentence can be read back word by word: `{a}` and `{b}` with
numbers, `{things:a}` with the noun in the form that goes with the number `a`, `{things}` with its form behind "how
many". `*` stands for the four options.
"""

from collections.abc import Mapping

NATURAL = ("en", "fr", "it", "fi", "ru")
OPTIONS = "A {first} B {second} C {third} D {fourth}"

_SENTENCES: Mapping[str, Mapping[str, str]] = {
    "en": {
        "buy": "I have {a} {things:a} and buy {b}. How many {things} now?",
        "sell": "I have {a} {things:a} and sell {b}. How many {things} now?",
        "bags": "I have {a} {bags:a} with {b} {things:b} in each. How many {things}?",
        "continent": "{country}: which continent? *",
    },
    "fr": {
        "buy": "J'ai {a} {things:a} et j'en achète {b}. Combien de {things} maintenant ?",
        "sell": "J'ai {a} {things:a} et j'en vends {b}. Combien de {things} maintenant ?",
        "bags": "J'ai {a} {bags:a} avec {b} {things:b} dans chacun. Combien de {things} ?",
        "continent": "{country} : quel continent ? *",
    },
    "it": {
        "buy": "Ho {a} {things:a} e ne compro {b}. Quante {things} ho ora?",
        "sell": "Ho {a} {things:a} e ne vendo {b}. Quante {things} ho ora?",
        "bags": "Ho {a} {bags:a} con {b} {things:b} in ognuna. Quante {things}?",
        "continent": "{country}: quale continente? *",
    },
    "fi": {
        "buy": "Minulla on {a} {things:a} ja ostan {b} lisää. Montako {things} nyt?",
        "sell": "Minulla on {a} {things:a} ja myyn {b} pois. Montako {things} nyt?",
        "bags": "Minulla on {a} {bags:a} ja kussakin {b} {things:b}. Montako {things}?",
        "continent": "{country}: mikä maanosa? *",
    },
    "ru": {
        "buy": "У меня {a} {things:a}, я покупаю {b}. Сколько теперь {things}?",
        "sell": "У меня {a} {things:a}, я продаю {b}. Сколько теперь {things}?",
        "bags": "У меня {a} {bags:a}, в каждой {b} {things:b}. Сколько всего {things}?",
        "continent": "{country}: какой континент? *",
    },
}
SENTENCES: Mapping[str, Mapping[str, str]] = {
    language: {kind: sentence.replace("*", OPTIONS) for kind, sentence in sentences.items()}
    for language, sentences in _SENTENCES.items()
}

# Two to five: one has genders.
_NUMBERS: Mapping[str, str] = {
    "en": "two three four five",
    "fr": "deux trois quatre cinq",
    "it": "due tre quattro cinque",
    "fi": "kaksi kolme neljä viisi",
    "ru": "две три четыре пять",
}
DIGITS = "2345"
# Feminine in Italian and Russian, and without an elision in French, so that the words around them stay.
THINGS = ("card", "rose", "coin", "lamp", "bottle", "cup", "shirt", "box", "candle", "pear", "plum", "fork")
BAG = "bag"
_NOUNS: Mapping[str, str] = {
    "en": "cards roses coins lamps bottles cups shirts boxes candles pears plums forks bags",
    "fr": "cartes roses pièces lampes bouteilles tasses chemises boîtes bougies poires prunes fourchettes sacs",
    "it": "carte rose monete lampade bottiglie tazze camicie scatole candele pere susine forchette borse",
    "fi": "korttia ruusua kolikkoa lamppua pulloa kuppia paitaa laatikkoa kynttilää päärynää luumua haarukkaa kassia",
    "ru": "карт роз монет ламп бутылок чашек рубашек коробок свечей груш слив вилок сумок",
}
# The form behind two, three and four where there is one of its own.
_FEW: Mapping[str, str] = {
    "ru": "карты розы монеты лампы бутылки чашки рубашки коробки свечи груши сливы вилки сумки",
}


def number_words(language: str) -> dict[str, str]:
    """`{digit: word}` of two to five."""
    return dict(zip(DIGITS, _NUMBERS[language].split(), strict=True))


def noun_words(language: str, *, few: bool = False) -> dict[str, str]:
    """`{thing: word}` behind a number, or behind "how many".

    Args:
      language: A natural language.
      few: Behind two, three or four.
    """
    forms = _FEW.get(language, _NOUNS[language]) if few else _NOUNS[language]
    return dict(zip((*THINGS, BAG), forms.split(), strict=True))
