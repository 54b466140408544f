"""The translator of the comprehension questions: exact, and honest about what it cannot read."""

from collections.abc import Sequence

from lcrag.atlas.comprehension.questions import LANGUAGES, NATURAL, ComprehensionTasks, meaning_of, sentence_of
from lcrag.data.constructed import CONSTRUCTED
from lcrag.episodes import Translated, TranslationFailure
from lcrag.models.translators import LookUpTranslator

ENGLISH = "en"


class ComprehensionTranslator:
    """Translates the comprehension questions between all their languages; `(texts, source, target) -> texts`.

    Constructed languages are looked up word by word, natural ones read sentence by sentence
    (`lcrag.atlas.comprehension.questions`). What is no sentence of theirs is a `TranslationFailure`.

    Args:
      tasks: The questions, for their vocabulary.
    """

    def __init__(self, tasks: ComprehensionTasks):
        self._look_up = LookUpTranslator(tasks.vocabulary)

    def __call__(self, texts: Sequence[str], source: str | None, target: str) -> list[Translated]:
        """The texts in the language `target`, in equal order.

        Args:
          texts: What to translate.
          source: Code of their language; None: each text's is found out.
          target: Code of the language wanted.
        """
        if unknown := [code for code in (source, target) if code not in (*LANGUAGES, None)]:
            return [TranslationFailure(f"the translator does not know the language {unknown[0]}")] * len(texts)
        return [self._translated(text, source, target) for text in texts]

    def _translated(self, text: str, source: str | None, target: str) -> Translated:
        language = source or self._look_up.language_of(text)
        if language in CONSTRUCTED:
            [found] = self._look_up([text], language, target if target in CONSTRUCTED else ENGLISH)
            further = isinstance(found, str) and target in NATURAL and target != ENGLISH
            return self._translated(str(found), ENGLISH, target) if further else found
        meaning = meaning_of(text, NATURAL if source is None else (source,))
        if meaning is None:
            return TranslationFailure("the text is no sentence that the translator can read")
        if target in CONSTRUCTED:
            return self._look_up([sentence_of(meaning, ENGLISH)], ENGLISH, target)[0]
        return sentence_of(meaning, target)
