"""The atlas's texts in each language: labels, questions, search queries and passages.

Each relation has (label of the passage and of the search query, question). Here are the languages in Latin script; the
others are in `wording_scripts`. Names are in apposition where the language would inflect them or add an article, so a
name is the same string everywhere.
"""

from lcrag.atlas import wording_scripts

_SPACED: dict[str, dict[str, tuple[str, str]]] = {
    "en": {
        "alpha_3": ("three-letter code", "What is the three-letter code of {name}?"),
        "number": ("numeric code", "What is the numeric code of {name}?"),
        "currency_code": ("currency code", "What is the currency code of {name}?"),
        "currency": ("currency", "What is the currency of {name}?"),
        "currency_year": ("currency introduced", "In which year was the currency introduced in {name}?"),
        "former_currency_code": ("former currency code", "What is the former currency code of {name}?"),
        "main_language": ("main language", "What is the main language of {name}?"),
        "time_zone": ("time zone", "What is the time zone of {name}?"),
        "code_of_currency": ("code", "What is the code of the currency {name}?"),
        "year_of_currency": ("introduced", "In which year was the currency {name} introduced?"),
        "country_of_currency": ("country", "Which country issued the currency {name}?"),
        "code_of_language": ("language code", "What is the language code of {name}?"),
        "country_of_language": ("main country", "What is the main country of the language {name}?"),
        "country_code_of_language": ("main country code", "What is the main country code of the language {name}?"),
        "script_of_language": ("script", "What is the script of the language {name}?"),
        "main_language+code_of_language": ("", "What is the language code of the main language of {name}?"),
        "main_language+script_of_language": ("", "What is the script of the main language of {name}?"),
        "country_of_language+currency_code": (
            "",
            "What is the currency code of the main country of the language {name}?",
        ),
        "country_of_language+alpha_3": (
            "",
            "What is the three-letter code of the main country of the language {name}?",
        ),
        "country_of_currency+number": ("", "What is the numeric code of the country that issued the currency {name}?"),
    },
    "fi": {
        "alpha_3": ("kolmikirjaiminen koodi", "Mikä on maan {name} kolmikirjaiminen koodi?"),
        "number": ("numerokoodi", "Mikä on maan {name} numerokoodi?"),
        "currency_code": ("valuuttakoodi", "Mikä on maan {name} valuuttakoodi?"),
        "currency": ("valuutta", "Mikä on maan {name} valuutta?"),
        "currency_year": ("valuutan käyttöönottovuosi", "Mikä on maan {name} valuutan käyttöönottovuosi?"),
        "former_currency_code": ("entinen valuuttakoodi", "Mikä on maan {name} entinen valuuttakoodi?"),
        "main_language": ("pääkieli", "Mikä on maan {name} pääkieli?"),
        "time_zone": ("aikavyöhyke", "Mikä on maan {name} aikavyöhyke?"),
        "code_of_currency": ("koodi", "Mikä on valuutan {name} koodi?"),
        "year_of_currency": ("käyttöönottovuosi", "Mikä on valuutan {name} käyttöönottovuosi?"),
        "country_of_currency": ("maa", "Mikä maa laski liikkeeseen valuutan {name}?"),
        "code_of_language": ("kielikoodi", "Mikä on kielen {name} kielikoodi?"),
        "country_of_language": ("päämaa", "Mikä on kielen {name} päämaa?"),
        "country_code_of_language": ("päämaan koodi", "Mikä on kielen {name} päämaan koodi?"),
        "script_of_language": ("kirjoitusjärjestelmä", "Mikä on kielen {name} kirjoitusjärjestelmä?"),
        "main_language+code_of_language": ("", "Mikä on maan {name} pääkielen kielikoodi?"),
        "main_language+script_of_language": ("", "Mikä on maan {name} pääkielen kirjoitusjärjestelmä?"),
        "country_of_language+currency_code": ("", "Mikä on kielen {name} päämaan valuuttakoodi?"),
        "country_of_language+alpha_3": ("", "Mikä on kielen {name} päämaan kolmikirjaiminen koodi?"),
        "country_of_currency+number": ("", "Mikä on valuutan {name} liikkeeseen laskeneen maan numerokoodi?"),
    },
    "fr": {
        "alpha_3": ("code à trois lettres", "Quel est le code à trois lettres du pays {name} ?"),
        "number": ("code numérique", "Quel est le code numérique du pays {name} ?"),
        "currency_code": ("code de la monnaie", "Quel est le code de la monnaie du pays {name} ?"),
        "currency": ("monnaie", "Quelle est la monnaie du pays {name} ?"),
        "currency_year": (
            "monnaie introduite en",
            "En quelle année la monnaie du pays {name} a-t-elle été introduite ?",
        ),
        "former_currency_code": (
            "code de l’ancienne monnaie",
            "Quel est le code de l’ancienne monnaie du pays {name} ?",
        ),
        "main_language": ("langue principale", "Quelle est la langue principale du pays {name} ?"),
        "time_zone": ("fuseau horaire", "Quel est le fuseau horaire du pays {name} ?"),
        "code_of_currency": ("code", "Quel est le code de la devise {name} ?"),
        "year_of_currency": ("introduite en", "En quelle année la devise {name} a-t-elle été introduite ?"),
        "country_of_currency": ("pays", "Quel pays a émis la devise {name} ?"),
        "code_of_language": ("code de langue", "Quel est le code de langue pour la langue {name} ?"),
        "country_of_language": ("pays principal", "Quel est le pays principal de la langue {name} ?"),
        "country_code_of_language": (
            "code du pays principal",
            "Quel est le code du pays principal de la langue {name} ?",
        ),
        "script_of_language": ("écriture", "Quelle est l’écriture de la langue {name} ?"),
        "main_language+code_of_language": ("", "Quel est le code de langue de la langue principale du pays {name} ?"),
        "main_language+script_of_language": ("", "Quelle est l’écriture de la langue principale du pays {name} ?"),
        "country_of_language+currency_code": (
            "",
            "Quel est le code de la monnaie du pays principal de la langue {name} ?",
        ),
        "country_of_language+alpha_3": ("", "Quel est le code à trois lettres du pays principal de la langue {name} ?"),
        "country_of_currency+number": ("", "Quel est le code numérique du pays qui a émis la devise {name} ?"),
    },
    "it": {
        "alpha_3": ("codice di tre lettere", "Qual è il codice di tre lettere del paese {name}?"),
        "number": ("codice numerico", "Qual è il codice numerico del paese {name}?"),
        "currency_code": ("codice della moneta", "Qual è il codice della moneta del paese {name}?"),
        "currency": ("moneta", "Qual è la moneta del paese {name}?"),
        "currency_year": ("moneta introdotta nel", "In che anno è stata introdotta la moneta del paese {name}?"),
        "former_currency_code": (
            "codice della vecchia moneta",
            "Qual è il codice della vecchia moneta del paese {name}?",
        ),
        "main_language": ("lingua principale", "Qual è la lingua principale del paese {name}?"),
        "time_zone": ("fuso orario", "Qual è il fuso orario del paese {name}?"),
        "code_of_currency": ("codice", "Qual è il codice della valuta {name}?"),
        "year_of_currency": ("introdotta nel", "In che anno è stata introdotta la valuta {name}?"),
        "country_of_currency": ("paese", "Quale paese ha emesso la valuta {name}?"),
        "code_of_language": ("codice di lingua", "Qual è il codice di lingua per la lingua {name}?"),
        "country_of_language": ("paese principale", "Qual è il paese principale della lingua {name}?"),
        "country_code_of_language": (
            "codice del paese principale",
            "Qual è il codice del paese principale della lingua {name}?",
        ),
        "script_of_language": ("scrittura", "Qual è la scrittura della lingua {name}?"),
        "main_language+code_of_language": ("", "Qual è il codice di lingua della lingua principale del paese {name}?"),
        "main_language+script_of_language": ("", "Qual è la scrittura della lingua principale del paese {name}?"),
        "country_of_language+currency_code": (
            "",
            "Qual è il codice della moneta del paese principale della lingua {name}?",
        ),
        "country_of_language+alpha_3": (
            "",
            "Qual è il codice di tre lettere del paese principale della lingua {name}?",
        ),
        "country_of_currency+number": ("", "Qual è il codice numerico del paese che ha emesso la valuta {name}?"),
    },
    "de": {
        "alpha_3": ("dreistelliger Ländercode", "Wie lautet der dreistellige Ländercode von {name}?"),
        "number": ("Zahlencode", "Wie lautet der Zahlencode von {name}?"),
        "currency_code": ("Währungscode", "Wie lautet der Währungscode von {name}?"),
        "currency": ("Währung", "Wie heißt die Währung von {name}?"),
        "currency_year": ("Währung eingeführt", "In welchem Jahr wurde die Währung von {name} eingeführt?"),
        "former_currency_code": ("früherer Währungscode", "Wie lautet der frühere Währungscode von {name}?"),
        "main_language": ("Hauptsprache", "Was ist die Hauptsprache von {name}?"),
        "time_zone": ("Zeitzone", "Was ist die Zeitzone von {name}?"),
        "code_of_currency": ("Code", "Wie lautet der Code der Währung {name}?"),
        "year_of_currency": ("eingeführt", "In welchem Jahr wurde die Währung {name} eingeführt?"),
        "country_of_currency": ("Land", "Welches Land hat die Währung {name} ausgegeben?"),
        "code_of_language": ("Sprachcode", "Wie lautet der Sprachcode von {name}?"),
        "country_of_language": ("Hauptland", "Was ist das Hauptland der Sprache {name}?"),
        "country_code_of_language": ("Code des Hauptlands", "Wie lautet der Code des Hauptlands der Sprache {name}?"),
        "script_of_language": ("Schrift", "Was ist die Schrift der Sprache {name}?"),
        "main_language+code_of_language": ("", "Wie lautet der Sprachcode der Hauptsprache von {name}?"),
        "main_language+script_of_language": ("", "Was ist die Schrift der Hauptsprache von {name}?"),
        "country_of_language+currency_code": (
            "",
            "Wie lautet der Währungscode des Hauptlands der Sprache {name}?",
        ),
        "country_of_language+alpha_3": (
            "",
            "Wie lautet der dreistellige Ländercode des Hauptlands der Sprache {name}?",
        ),
        "country_of_currency+number": (
            "",
            "Wie lautet der Zahlencode des Landes, das die Währung {name} ausgegeben hat?",
        ),
    },
    "es": {
        "alpha_3": ("código de tres letras", "¿Cuál es el código de tres letras de {name}?"),
        "number": ("código numérico", "¿Cuál es el código numérico de {name}?"),
        "currency_code": ("código de la moneda", "¿Cuál es el código de la moneda de {name}?"),
        "currency": ("moneda", "¿Cuál es la moneda de {name}?"),
        "currency_year": ("moneda introducida en", "¿En qué año fue introducida la moneda de {name}?"),
        "former_currency_code": ("código de la moneda anterior", "¿Cuál es el código de la moneda anterior de {name}?"),
        "main_language": ("idioma principal", "¿Cuál es el idioma principal de {name}?"),
        "time_zone": ("zona horaria", "¿Cuál es la zona horaria de {name}?"),
        "code_of_currency": ("código", "¿Cuál es el código de la divisa {name}?"),
        "year_of_currency": ("introducida en", "¿En qué año fue introducida la divisa {name}?"),
        "country_of_currency": ("país", "¿Qué país emitió la divisa {name}?"),
        "code_of_language": ("código de idioma", "¿Cuál es el código de idioma de {name}?"),
        "country_of_language": ("país principal", "¿Cuál es el país principal del idioma {name}?"),
        "country_code_of_language": (
            "código del país principal",
            "¿Cuál es el código del país principal del idioma {name}?",
        ),
        "script_of_language": ("escritura", "¿Cuál es la escritura del idioma {name}?"),
        "main_language+code_of_language": ("", "¿Cuál es el código de idioma del idioma principal de {name}?"),
        "main_language+script_of_language": ("", "¿Cuál es la escritura del idioma principal de {name}?"),
        "country_of_language+currency_code": (
            "",
            "¿Cuál es el código de la moneda del país principal del idioma {name}?",
        ),
        "country_of_language+alpha_3": (
            "",
            "¿Cuál es el código de tres letras del país principal del idioma {name}?",
        ),
        "country_of_currency+number": ("", "¿Cuál es el código numérico del país que emitió la divisa {name}?"),
    },
    "pt": {
        "alpha_3": ("código de três letras", "Qual é o código de três letras do país {name}?"),
        "number": ("código numérico", "Qual é o código numérico do país {name}?"),
        "currency_code": ("código da moeda", "Qual é o código da moeda do país {name}?"),
        "currency": ("moeda", "Qual é a moeda do país {name}?"),
        "currency_year": ("moeda introduzida em", "Em que ano foi introduzida a moeda do país {name}?"),
        "former_currency_code": ("código da moeda anterior", "Qual é o código da moeda anterior do país {name}?"),
        "main_language": ("língua principal", "Qual é a língua principal do país {name}?"),
        "time_zone": ("fuso horário", "Qual é o fuso horário do país {name}?"),
        "code_of_currency": ("código", "Qual é o código da divisa {name}?"),
        "year_of_currency": ("introduzida em", "Em que ano foi introduzida a divisa {name}?"),
        "country_of_currency": ("país", "Qual país emitiu a divisa {name}?"),
        "code_of_language": ("código de língua", "Qual é o código de língua para a língua {name}?"),
        "country_of_language": ("país principal", "Qual é o país principal da língua {name}?"),
        "country_code_of_language": ("código do país principal", "Qual é o código do país principal da língua {name}?"),
        "script_of_language": ("escrita", "Qual é a escrita da língua {name}?"),
        "main_language+code_of_language": ("", "Qual é o código de língua da língua principal do país {name}?"),
        "main_language+script_of_language": ("", "Qual é a escrita da língua principal do país {name}?"),
        "country_of_language+currency_code": ("", "Qual é o código da moeda do país principal da língua {name}?"),
        "country_of_language+alpha_3": ("", "Qual é o código de três letras do país principal da língua {name}?"),
        "country_of_currency+number": ("", "Qual é o código numérico do país que emitiu a divisa {name}?"),
    },
}

WORDING = _SPACED | wording_scripts.WORDING

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
