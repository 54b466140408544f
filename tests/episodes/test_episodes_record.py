"""The record of an episode: its rows, and the chat template of its opening."""

import dataclasses
import json

import numpy as np
import pytest
import transformers
from episode_scripts import (
    LANGUAGES,
    TEMPLATE,
    chat_tokenizer,
    lcrl_programs,
    question,
    run_alone,
    runner,
    searches_then_answers,
)
from support import tiny_tokenizer
from support.tokenizer_families import FAMILIES

from lcrag.episodes import Chat, Generate, Observe, Outcome, episode_json, token_arrays
from lcrag.errors import UserError
from lcrag.methods.lcrl.program import hierarchical_search


def test_the_line_of_json():
    (record,) = runner(lambda *_: "<answer>Lima</answer>").run(lcrl_programs(1), policy_version=2)
    row = episode_json(record, rewards={"total": np.float32(0.5)}, advantage=np.float32(0.25))
    line = json.loads(json.dumps(row, ensure_ascii=False))
    sampled = int(record.by_policy.sum())
    assert line.pop("tokens")["pieces"] == [[-1, len(record.tokens) - sampled], [0, sampled]]
    (wait,) = line.pop("seconds")["waits"]
    assert (wait["turn"], wait["for"], wait["start"] <= wait["end"]) == (0, "generation", True)
    assert line == {
        "question_id": "0",
        "dataset": "d",
        "language": "ar",
        "question": "Capital of Peru?",
        "golds": ["Lima"],
        "group": "d/0",
        "episode": 0,
        "prompt": "Capital of Peru?\n",
        "turns": [{"by": "policy", "text": "<answer>Lima</answer>"}],
        "answer": "Lima",
        "outcome": {"answer": "Lima", "invalid_actions": 0, "extra": {}, "finished": True, "counts": record.counts},
        "rewards": {"total": 0.5},
        "advantage": 0.25,
        "policy_version": 2,
    }
    assert episode_json(record, group=4)["group"] == 4


def test_the_tokens_of_a_row_read_back_bit_for_bit():
    (record,) = runner(searches_then_answers).run(lcrl_programs(1))
    scores = np.random.default_rng(0).integers(0, 2**31, len(record.tokens), np.uint32).view(np.float32)
    scores = np.where(record.by_policy & np.isfinite(scores), -scores, np.float32(0))
    record = dataclasses.replace(record, log_probabilities=scores)
    read = token_arrays(json.loads(json.dumps(episode_json(record))))
    for name, values in read.items():
        assert values.dtype == getattr(record, name).dtype
        assert values.tobytes() == getattr(record, name).tobytes()
    row = episode_json(record)
    assert [(wait["for"], wait["turn"]) for wait in row["seconds"]["waits"]] == [
        *(("generation", 0), ("search", 1), ("generation", 2))
    ]
    row["tokens"]["pieces"][0][1] += 1
    with pytest.raises(ValueError, match="do not add up"):
        token_arrays(row)


ASKED = "<eos>[user]Capital of Peru?\n<eos>[assistant]"


def test_the_opening_is_the_users_turn_and_observations_continue_the_models():
    tokenizer = chat_tokenizer()
    program = hierarchical_search(question(), LANGUAGES, prompt="atlas", style="atlas", budget=1)
    record = run_alone(program, searches_then_answers, tokenizer=tokenizer, max_tokens=60)
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
    record = run_alone(program(), lambda *_: "ab", tokenizer=tokenizer)
    observed = record.tokens[~record.by_policy]
    assert np.isin(observed, list(tokenizer.special_tokens.values())).sum() == 0
    assert tokenizer.decode(observed) == "Ask: <eos></s> then <eos></s><s> more"


@pytest.mark.parametrize(
    ("tokenizer", "chat", "name"),
    [
        (tiny_tokenizer(), Chat(system="a"), "Chat.system"),
        (chat_tokenizer(), Chat(system="a", template=False), "Chat.system"),
        (chat_tokenizer("{{ messages[0].content }}"), Chat(enable_thinking=True), "Chat.enable_thinking"),
    ],
)
def test_settings_that_a_template_cannot_follow_are_refused(tokenizer, chat, name):
    with pytest.raises(UserError, match=name):
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
        (dataclasses.replace(tiny_tokenizer(), beginning_ids=(7,)), Chat(), "Search first.\n\nCapital of Peru?\n"),
    ],
)
def test_a_programs_instructions_are_the_system_message(tokenizer, chat, prompt):
    record = run_alone(instructed(question()), lambda *_: "Lima", tokenizer=tokenizer, chat=chat)
    assert record.prompt == f"{prompt}Think.\n"
    assert record.tokens[0] == (tokenizer.beginning_ids or tokenizer.encode(prompt))[0]
    assert (record.system, record.opening) == ("Search first.", ("Capital of Peru?\n", "Think.\n"))
    assert episode_json(record)["system"] == "Search first."
