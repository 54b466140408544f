"""How each natural language puts the comprehension questions, and what it calls what they are about.

A place in braces is filled with one word, so that a sentence can be read back word by word: `{a}` and `{b}` with
numbers, `{things:a}` with the noun in the form that goes with the number `a`, `{things}` with its form behind "how
many". `*` stands for the four options.
"""

from collections.abc import Mapping

NATURAL = ("en", "fr", "it", "es", "fi", "ru")
OPTIONS = "A {first} B {second} C {third} D {fourth}"

_SENTENCES: Mapping[str, Mapping[str, str]] = {
    "en": {
        "buy": "I have {a} {things:a} and buy {b}. How many {things} now?",
        "sell": "I have {a} {things:a} and sell {b}. How many {things} now?",
        "bags": "I have {a} {bags:a} with {b} {things:b} in each. How many {things}?",
        "continent": "{country}: which continent? *",
        "language": "{country}: which language? *",
    },
    "fr": {
        "buy": "J'ai {a} {things:a} et j'en achète {b}. Combien de {things} maintenant ?",
        "sell": "J'ai {a} {things:a} et j'en vends {b}. Combien de {things} maintenant ?",
        "bags": "J'ai {a} {bags:a} avec {b} {things:b} dans chacun. Combien de {things} ?",
        "continent": "{country} : quel continent ? *",
        "language": "{country} : quelle langue ? *",
    },
    "it": {
        "buy": "Ho {a} {things:a} e ne compro {b}. Quante {things} ho ora?",
        "sell": "Ho {a} {things:a} e ne vendo {b}. Quante {things} ho ora?",
        "bags": "Ho {a} {bags:a} con {b} {things:b} in ognuna. Quante {things}?",
        "continent": "{country}: quale continente? *",
        "language": "{country}: quale lingua? *",
    },
    "es": {
        "buy": "Tengo {a} {things:a} y compro {b}. ¿Cuántas {things} tengo ahora?",
        "sell": "Tengo {a} {things:a} y vendo {b}. ¿Cuántas {things} tengo ahora?",
        "bags": "Tengo {a} {bags:a} con {b} {things:b} en cada una. ¿Cuántas {things}?",
        "continent": "{country}: ¿qué continente? *",
        "language": "{country}: ¿qué idioma? *",
    },
    "fi": {
        "buy": "Minulla on {a} {things:a} ja ostan {b} lisää. Montako {things} nyt?",
        "sell": "Minulla on {a} {things:a} ja myyn {b} pois. Montako {things} nyt?",
        "bags": "Minulla on {a} {bags:a} ja kussakin {b} {things:b}. Montako {things}?",
        "continent": "{country}: mikä maanosa? *",
        "language": "{country}: mikä kieli? *",
    },
    "ru": {
        "buy": "У меня {a} {things:a}, я покупаю {b}. Сколько теперь {things}?",
        "sell": "У меня {a} {things:a}, я продаю {b}. Сколько теперь {things}?",
        "bags": "У меня {a} {bags:a}, в каждой {b} {things:b}. Сколько всего {things}?",
        "continent": "{country}: какой континент? *",
        "language": "{country}: какой язык? *",
    },
}
SENTENCES: Mapping[str, Mapping[str, str]] = {
    language: {kind: sentence.replace("*", OPTIONS) for kind, sentence in sentences.items()}
    for language, sentences in _SENTENCES.items()
}

# Two to nine: one has genders, and larger ones are as often written in digits.
_NUMBERS: Mapping[str, str] = {
    "en": "two three four five six seven eight nine",
    "fr": "deux trois quatre cinq six sept huit neuf",
    "it": "due tre quattro cinque sei sette otto nove",
    "es": "dos tres cuatro cinco seis siete ocho nueve",
    "fi": "kaksi kolme neljä viisi kuusi seitsemän kahdeksan yhdeksän",
    "ru": "две три четыре пять шесть семь восемь девять",
}
# Feminine in Italian, Spanish and Russian, and without an elision in French, so that the words around them stay.
THINGS = ("card", "rose", "coin", "pen", "lamp", "bottle", "cup", "shirt")
BAG = "bag"
_NOUNS: Mapping[str, str] = {
    "en": "cards roses coins pens lamps bottles cups shirts bags",
    "fr": "cartes roses pièces plumes lampes bouteilles tasses chemises sacs",
    "it": "carte rose monete penne lampade bottiglie tazze camicie borse",
    "es": "cartas rosas monedas plumas lámparas botellas tazas camisas bolsas",
    "fi": "korttia ruusua kolikkoa kynää lamppua pulloa kuppia paitaa kassia",
    "ru": "карт роз монет ручек ламп бутылок чашек рубашек сумок",
}
# The form behind two, three and four where there is one of its own.
_FEW: Mapping[str, str] = {"ru": "карты розы монеты ручки лампы бутылки чашки рубашки сумки"}


def number_words(language: str) -> dict[str, str]:
    """`{digit: word}` of two to nine."""
    return dict(zip("23456789", _NUMBERS[language].split(), strict=True))


def noun_words(language: str, *, few: bool = False) -> dict[str, str]:
    """`{thing: word}` behind a number, or behind "how many".

    Args:
      language: A natural language.
      few: Behind two, three or four.
    """
    forms = _FEW.get(language, _NOUNS[language]) if few else _NOUNS[language]
    return dict(zip((*THINGS, BAG), forms.split(), strict=True))
