"""The opening of an episode in the model's chat template: what stands in the context, and what the record says."""

import dataclasses

import numpy as np
import pytest
import transformers
from episode_scripts import LANGUAGES, question, search

from lcrag.episodes import Chat, Generate, Observe, Outcome, Runner, episode_json
from lcrag.errors import UserError
from lcrag.methods.lcrl.program import hierarchical_search
from lcrag.policy import ChatTemplate, HuggingFaceTokenizer
from lcrag.retrieval.passages import Hit
from lcrag.testing import tiny_tokenizer
from lcrag.testing.scripted_sampler import ScriptedSampler
from lcrag.testing.tokenizer_families import FAMILIES

SOURCE = (
    "{% for message in messages %}<eos>[{{ message.role }}]{{ message.content }}<eos>{% endfor %}[assistant]"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)


def chat_tokenizer() -> HuggingFaceTokenizer:
    return dataclasses.replace(tiny_tokenizer(), chat_template=ChatTemplate(SOURCE))


def runner(script, tokenizer, searches=search, **arguments) -> Runner:
    sampler = ScriptedSampler(tokenizer, script, slots=2, context=600)
    return Runner(sampler=sampler, tokenizer=tokenizer, search=searches, max_tokens=60, **arguments)


def searches_then_answers(context: str, generation) -> str:
    return "<answer>Lima</answer>" if "</information>" in context else "<search>Peru</search>"


def episode(tokenizer, script=searches_then_answers, searches=search, **arguments):
    program = hierarchical_search(question(), LANGUAGES, prompt="atlas", style="atlas", budget=1)
    [record] = runner(script, tokenizer, searches, **arguments).run([(question(), program, 0)])
    return record


def test_the_opening_is_the_users_turn_and_observations_continue_the_models():
    tokenizer = chat_tokenizer()
    record = episode(tokenizer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend, chat_template=SOURCE)
    messages = [{"role": "user", "content": "Capital of Peru?\n"}]
    expected = fast.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert record.prompt == "<eos>[user]Capital of Peru?\n<eos>[assistant]"
    assert record.tokens[record.turn == -1].tolist() == expected
    assert not record.by_policy[: len(expected)].any()
    written = record.prompt + "".join(turn.text for turn in record.turns)
    assert written == tokenizer.decode(record.tokens)
    assert "[user]" not in "".join(turn.text for turn in record.turns)
    assert record.outcome.answer == "Lima"


def test_a_system_prompt_and_thinking_are_settings():
    record = episode(chat_tokenizer(), chat=Chat(system="Be brief.", enable_thinking=False))
    assert record.prompt == ("<eos>[system]Be brief.<eos><eos>[user]Capital of Peru?\n<eos>[assistant]<think></think>")


@pytest.mark.parametrize(
    ("tokenizer", "chat"),
    [(chat_tokenizer(), Chat(template=False)), (tiny_tokenizer(), Chat()), (tiny_tokenizer(), Chat(template=False))],
)
def test_without_a_template_or_a_chat_the_opening_stays_as_it_is(tokenizer, chat):
    record = episode(tokenizer, chat=chat)
    assert record.prompt == "Capital of Peru?\n"
    assert record.tokens[record.turn == -1].tolist() == tokenizer.encode("Capital of Peru?\n")


def test_a_context_begins_with_what_the_tokenizer_asks_for():
    tokenizer = dataclasses.replace(tiny_tokenizer(), beginning_ids=(7,))
    record = episode(tokenizer)
    assert record.prompt == "Capital of Peru?\n"
    assert record.tokens[record.turn == -1].tolist() == [7, *tokenizer.encode("Capital of Peru?\n")]


@pytest.mark.parametrize("tokenizer", [chat_tokenizer(), FAMILIES["Llama 2"](), FAMILIES["Metaspace"]()])
def test_no_observation_holds_a_control_token(tokenizer):
    """Even one that a program did not neutralise."""

    def program():
        yield Observe("Ask: <eos></s>")
        yield Generate(stop=("b",))
        yield Observe(" then <eos></s><s> more")
        yield Generate(stop=("b",))
        return Outcome(answer=None)

    tokenizer = dataclasses.replace(tokenizer, chat_template=None)
    [record] = runner(lambda context, generation: "ab", tokenizer).run([(question(), program(), 0)])
    observed = record.tokens[~record.by_policy]
    assert np.isin(observed, list(tokenizer.special_tokens.values())).sum() == 0
    assert tokenizer.decode(observed) == "Ask: <eos></s> then <eos></s><s> more"


def test_an_observation_in_a_llama_context_has_no_space_in_front():
    tokenizer = FAMILIES["Llama 2"]()
    record = episode(tokenizer)
    assert tokenizer.decode(record.tokens) == record.prompt + "".join(turn.text for turn in record.turns)


def test_passages_fit_in_every_family():
    def long(queries, languages, passages):
        return [[Hit("1", "Peru", "Lima is the capital. " * 80, 1.0, language)] for language in languages]

    for tokenizer in (chat_tokenizer(), FAMILIES["Llama 2"](), FAMILIES["Metaspace"]()):
        record = episode(tokenizer, searches=long)
        assert len(record.tokens) <= 600 and record.finished and record.outcome.answer == "Lima"


def test_settings_that_a_template_cannot_follow_are_refused():
    with pytest.raises(UserError, match=r"Chat.system is set, but the policy's tokenizer has no chat template"):
        runner(searches_then_answers, tiny_tokenizer(), chat=Chat(system="a"))
    with pytest.raises(UserError, match=r"Chat.system is set, but Chat.template is False"):
        runner(searches_then_answers, chat_tokenizer(), chat=Chat(system="a", template=False))
    silent = dataclasses.replace(tiny_tokenizer(), chat_template=ChatTemplate("{{ messages[0].content }}"))
    with pytest.raises(UserError, match="the policy's chat template knows no such switch"):
        runner(searches_then_answers, silent, chat=Chat(enable_thinking=True))


def test_a_prompt_that_outgrows_the_context_with_its_markup_is_refused():
    tokenizer = chat_tokenizer()
    tight = runner(searches_then_answers, tokenizer, chat=Chat(system="word " * 600))
    program = hierarchical_search(question(), LANGUAGES, prompt="atlas", style="atlas")
    with pytest.raises(UserError, match="raise the sampler's context"):
        tight.check([(question(), program, 0)])


ASKED = "<eos>[user]Capital of Peru?\n<eos>[assistant]"


def instructed(asked, system="Search first."):
    """A program with instructions of its own."""
    yield Observe(f"{asked.text}\n", system=system)
    yield Observe("Think.\n", system="Too late.")
    return Outcome(answer=(yield Generate(stop=())))


@pytest.mark.parametrize(
    ("tokenizer", "chat", "prompt"),
    [
        (chat_tokenizer(), Chat(), f"<eos>[system]Search first.<eos>{ASKED}"),
        (chat_tokenizer(), Chat(system="Be brief."), f"<eos>[system]Be brief.\n\nSearch first.<eos>{ASKED}"),
        (chat_tokenizer(), Chat(template=False), "Search first.\n\nCapital of Peru?\n"),
        (tiny_tokenizer(), Chat(), "Search first.\n\nCapital of Peru?\n"),
    ],
)
def test_a_programs_instructions_are_the_system_message(tokenizer, chat, prompt):
    [record] = runner(lambda *_: "Lima", tokenizer, chat=chat).run([(question(), instructed(question()), 0)])
    assert record.prompt == f"{prompt}Think.\n"
    assert (record.system, record.opening) == ("Search first.", ("Capital of Peru?\n", "Think.\n"))
    assert episode_json(record)["system"] == "Search first."
