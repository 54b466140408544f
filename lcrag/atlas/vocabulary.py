"""The atlas tokenizer: a byte-level BPE of 4,096 entries in which names and values have the same tokens everywhere.

Pre-tokens are words with the preceding space (as in GPT-2), split where the script changes; digits and punctuation are
separate. A name between spaces or punctuation therefore has the same ids in every context.
"""

import collections
import pathlib
from collections.abc import Iterable, Iterator

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from lcrag.atlas.facts import section_of, subject_of
from lcrag.atlas.wording import query_text
from lcrag.atlas.world import Entry, World, render_passage
from lcrag.data.languages import LCRL_LANGUAGES

VOCABULARY_SIZE = 4096
PADDING = "<pad>"  # id 0, seqio's padding id
END_OF_SEQUENCE = "<eos>"
TAG_NAMES = (
    *("think", "search", "information", "answer", "observation", "original_evidence"),
    *("plan", "subPlan", "subAnswer", "tool_call", "tool_response"),
)
SHIPPED_FOLDER = pathlib.Path(__file__).parent / "weights" / "tokenizer"

_CUT_SCRIPTS = (
    r"\p{Han}",
    r"[\p{Katakana}ー]",
    r"\p{Hiragana}",
    r"\p{Thai}",
    r"\p{Hangul}",
    r"\p{Arabic}",
    r"\p{Cyrillic}",
)
_OTHER_LETTERS = rf"[[\p{{L}}\p{{M}}\x{{200C}}]&&[^{''.join(_CUT_SCRIPTS)}]]"
_PRE_TOKEN = "|".join(
    (*(rf" ?{script}+" for script in (*_CUT_SCRIPTS, _OTHER_LETTERS)), r" ?\p{N}", r" ?[^\s\p{L}\p{M}\p{N}]", r"\s")
)


def tags() -> list[str]:
    """Returns the opening and closing tags of every method, each of which is one token."""
    return [form.format(name) for name in TAG_NAMES for form in ("<{}>", "</{}>")]


def training_text(world: World, language: str) -> Iterator[str]:
    """Yields the training text of a language: questions, queries and passages of training facts, without years."""
    for question in world.questions("train", (language,)):
        yield f" {question.text}"
    sections = collections.defaultdict(list)
    for fact in world.training_facts:
        yield f" {query_text(language, fact.relation, world.name(subject_of(fact), language).text)}"
        sections[section_of(fact)].append((fact, Entry(fact.value, None)))
    for statements in sections.values():
        yield f" {render_passage(world.written_passage('', language, statements))}\n"


def train_tokenizer(world: World, extra_text: Iterable[str] = ()) -> Tokenizer:
    """Trains the tokenizer; the same world and text give the same vocabulary.

    Args:
      world: The atlas; languages have equal weight, because all have the same training facts.
      extra_text: More text, such as that of the environment; repeated lines have more weight.
    """
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_PRE_TOKEN), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len([END_OF_SEQUENCE, *tags()]),
        special_tokens=[PADDING],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    lines = [line for language in LCRL_LANGUAGES for line in training_text(world, language)]
    tokenizer.train_from_iterator([*lines, *extra_text], trainer)
    tokenizer.add_special_tokens([AddedToken(END_OF_SEQUENCE, normalized=False, special=True)])
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in tags()])
    return tokenizer
