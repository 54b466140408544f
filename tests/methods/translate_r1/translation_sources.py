"""Questions to translate, for the tests of the translation pipeline."""

from lcrag.data.questions import Question
from lcrag.methods.translate_r1.pipeline.checks import Thresholds

USUAL = Thresholds()
PROBLEM = "Anna has 3 apples and buys 5 more in the old town. How many apples does she have now?"
CHOICE = "Which of these is a fruit of a tree?\nA. an apple\nB. a potato\nC. 12\nD. a stone"


def question(text=PROBLEM, *answers, domain="mathematics", language="en", number=1, **extra):
    named = {"domain": domain} if domain else {}
    return Question(
        id=str(number), dataset="d", language=language, text=text, answers=answers or ("8",), extra=named | extra
    )
