"""The opening of an episode in the model's chat template: in the context and in the record."""

import dataclasses

import numpy as np
import pytest
import transformers
from episode_scripts import (
    LANGUAGES,
    TEMPLATE,
    chat_tokenizer,
    question,
    run_alone,
    runner,
    search,
    searches_then_answers,
)
from support import tiny_tokenizer
from support.tokenizer_families import FAMILIES

from lcrag.episodes import Chat, Generate, Observe, Outcome, episode_json
from lcrag.errors import UserError
from lcrag.methods.lcrl.program import hierarchical_search
from lcrag.retrieval.passages import Hit

ASKED = "<eos>[user]Capital of Peru?\n<eos>[assistant]"


def episode(tokenizer, searches=search, **arguments):
    program = hierarchical_search(question(), LANGUAGES, prompt="atlas", style="atlas", budget=1)
    return run_alone(program, searches_then_answers, tokenizer=tokenizer, search=searches, max_tokens=60, **arguments)


def test_the_opening_is_the_users_turn_and_observations_continue_the_models():
    tokenizer = chat_tokenizer()
    record = episode(tokenizer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend, chat_template=TEMPLATE)
    messages = [{"role": "user", "content": "Capital of Peru?\n"}]
    expected = fast.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert record.prompt == ASKED
    assert record.tokens[record.turn == -1].tolist() == expected
    assert not record.by_policy[: len(expected)].any()
    turns = "".join(turn.text for turn in record.turns)
    assert record.prompt + turns == tokenizer.decode(record.tokens)
    assert "[user]" not in turns
    assert record.outcome.answer == "Lima"


@pytest.mark.parametrize(
    ("tokenizer", "chat", "beginning"),
    [
        (chat_tokenizer(), Chat(template=False), []),
        (tiny_tokenizer(), Chat(), []),
        (dataclasses.replace(tiny_tokenizer(), beginning_ids=(7,)), Chat(template=False), [7]),
    ],
)
def test_without_a_template_the_opening_stands_unchanged_after_what_the_tokenizer_begins_with(
    tokenizer, chat, beginning
):
    record = episode(tokenizer, chat=chat)
    assert record.prompt == "Capital of Peru?\n"
    assert record.tokens[record.turn == -1].tolist() == [*beginning, *tokenizer.encode("Capital of Peru?\n")]


FAMILIES_OF_CHAT = [chat_tokenizer(), FAMILIES["Llama 2"](), FAMILIES["Metaspace"]()]


@pytest.mark.parametrize("tokenizer", FAMILIES_OF_CHAT)
def test_no_observation_holds_a_control_token(tokenizer):
    """Even one that a program did not neutralise."""

    def program():
        yield Observe("Ask: <eos></s>")
        yield Generate(stop=("b",))
        yield Observe(" then <eos></s><s> more")
        yield Generate(stop=("b",))
        return Outcome(answer=None)

    tokenizer = dataclasses.replace(tokenizer, chat_template=None)
    record = run_alone(program(), lambda *_: "ab", tokenizer=tokenizer)
    observed = record.tokens[~record.by_policy]
    assert np.isin(observed, list(tokenizer.special_tokens.values())).sum() == 0
    assert tokenizer.decode(observed) == "Ask: <eos></s> then <eos></s><s> more"


@pytest.mark.parametrize("tokenizer", FAMILIES_OF_CHAT)
def test_passages_fit_in_every_family_without_a_space_in_front(tokenizer):
    def long(queries, languages, passages):
        return [[Hit("1", "Peru", "Lima is the capital. " * 80, 1.0, language)] for language in languages]

    record = episode(tokenizer, searches=long)
    assert len(record.tokens) <= 600
    assert (record.finished, record.outcome.answer) == (True, "Lima")
    assert tokenizer.decode(record.tokens) == record.prompt + "".join(turn.text for turn in record.turns)


@pytest.mark.parametrize(
    ("tokenizer", "chat", "message"),
    [
        (tiny_tokenizer(), Chat(system="a"), "Chat.system is set, but the policy's tokenizer has no chat template"),
        (chat_tokenizer(), Chat(system="a", template=False), "Chat.system is set, but Chat.template is False"),
        (chat_tokenizer("{{ messages[0].content }}"), Chat(enable_thinking=True), "template knows no such switch"),
    ],
)
def test_settings_that_a_template_cannot_follow_are_refused(tokenizer, chat, message):
    with pytest.raises(UserError, match=message):
        runner(searches_then_answers, tokenizer=tokenizer, chat=chat)


def instructed(asked):
    """A program with its own instructions."""
    yield Observe(f"{asked.text}\n", system="Search first.")
    yield Observe("Think.\n", system="Too late.")
    return Outcome(answer=(yield Generate(stop=())))


@pytest.mark.parametrize(
    ("tokenizer", "chat", "prompt"),
    [
        (chat_tokenizer(), Chat(), f"<eos>[system]Search first.<eos>{ASKED}"),
        (chat_tokenizer(), Chat(system="Be brief."), f"<eos>[system]Be brief.\n\nSearch first.<eos>{ASKED}"),
        (chat_tokenizer(), Chat(enable_thinking=False), f"<eos>[system]Search first.<eos>{ASKED}<think></think>"),
        (chat_tokenizer(), Chat(template=False), "Search first.\n\nCapital of Peru?\n"),
        (tiny_tokenizer(), Chat(), "Search first.\n\nCapital of Peru?\n"),
    ],
)
def test_a_programs_instructions_are_the_system_message(tokenizer, chat, prompt):
    record = run_alone(instructed(question()), lambda *_: "Lima", tokenizer=tokenizer, chat=chat)
    assert record.prompt == f"{prompt}Think.\n"
    assert (record.system, record.opening) == ("Search first.", ("Capital of Peru?\n", "Think.\n"))
    assert episode_json(record)["system"] == "Search first."
