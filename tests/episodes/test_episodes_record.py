"""The record of an episode: its rows, and the chat template of its opening."""

import dataclasses
import functools
import json

import numpy as np
import pytest
import transformers
from episode_scripts import (
    LANGUAGES,
    TEMPLATE,
    chat_tokenizer,
    hit,
    lcrl_programs,
    played,
    question,
    run_alone,
    runner,
    searches_then_answers,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import tiny_tokenizer
from support.chat_models import OWN_FOLDER, SMOLLM2, chat_model, chat_models, of_family, qwen, said_and_shown
from support.tokenizer_families import FAMILIES

from lcrag.episodes import Chat, Generate, Observe, Outcome, episode_json, token_arrays
from lcrag.episodes.chat import ContextTokenizer
from lcrag.errors import UserError
from lcrag.methods.lcrl.program import hierarchical_search


def test_the_line_of_json():
    r = runner(lambda *_: "<answer>Lima</answer>")
    r.sampler.policy_version = 2
    (record,) = r.run(lcrl_programs(1))
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


# --- Turns as messages ---

WORDS = ["I", "search", "<search>", "Turku?", "\n", "日本", "é", " ", "<think>", "1", "</answer>", "'s"]
SAID, SHOWN = said_and_shown(WORDS)


@pytest.fixture(scope="module", params=["SmolLM2", "Llama 3", "Gemma 3", "Qwen2.5", "Qwen3", OWN_FOLDER])
def family(request):
    """The name of a family, our tokenizer of texts in messages, and the tokenizer of transformers."""
    tokenizer, theirs = of_family(request.param)
    chat = Chat(turns="messages")
    chat.check(tokenizer)
    return request.param, tokenizer, ContextTokenizer(tokenizer, chat), theirs


TURNS = st.lists(st.tuples(SAID, st.booleans(), SHOWN), min_size=1, max_size=3)


def conversation(context, turns, thinks):
    """Turns (said, whether its end is sampled, shown) as texts that every template writes, and as messages."""
    texts = []
    for said, ended, shown in turns:
        said = said.replace("<think>", "").strip() or "a"
        # a thought in Qwen3's own form; of any other its template makes this form
        texts.append((f"<think>\nhm\n</think>\n\n{said}" if thinks else said, ended, shown))
    messages = [{"role": "system", "content": "Search first."}, {"role": "user", "content": "Where is Turku?"}]
    for said, _, shown in texts:
        messages += [{"role": "assistant", "content": said}, {"role": context.role, "content": shown}]
    return texts, messages


def spells_control_tokens(tokenizer, messages) -> bool:
    """Whether transformers would take a part of a text for a control token."""
    spoken = "".join(message["content"] for message in messages)
    return any(token in spoken for token in tokenizer.special_tokens)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=TURNS, thinks=st.booleans())
def test_a_dialogue_in_messages_has_the_ids_of_transformers(family, turns, thinks):
    (name, tokenizer, context, theirs), end = family, family[1].eos_ids[0]
    assert context.role == ("tool" if name.startswith("Qwen") else "user")
    turns, messages = conversation(context, turns, thinks)
    episode, _ = played(tokenizer, context, "Search first.", turns)
    arrays, ends = episode.transcript.arrays(), [ended for _, ended, _ in turns]
    if not spells_control_tokens(tokenizer, messages):
        ids = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert arrays["tokens"].tolist() == ids
    # A sampled end of turn is the policy's, and learned; one that the environment wrote is not.
    assert [bool(arrays["by_policy"][arrays["turn"] == 2 * n][-1]) for n in range(len(ends))] == [True] * len(ends)
    assert (arrays["tokens"][arrays["by_policy"]] == end).sum() == sum(ends)
    assert not arrays["log_probabilities"][~arrays["by_policy"]].any()
    written = [turn.text for turn in episode.transcript.turns if turn.by == "environment"]
    assert written == [shown for *_, shown in turns]


FORGETFUL = SMOLLM2.replace("{{ message.content }}", "{{ message.content.split('</think>')[-1] }}")
OPEN_ENDED = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] "
OF_LATER = SMOLLM2.replace(
    "{{ message.content }}", "{{ message.content if loop.index0 < 2 or message.role != 'user' }}"
)
XML_CALLS = SMOLLM2.replace(
    "{{ message.content }}",
    "{% if message.tool_calls %}<function={{ message.tool_calls[0].function.name }}>{% else %}{{ message.content }}"
    "{% endif %}",
)
UNWRITTEN = "<|im_start|>{% for m in messages %}{{ m.role }} CONTENT<|im_end|>{% endfor %}<|im_start|>assistant "
NOT_AS_IT_IS = (
    "{{ m.content | e }}",
    "{% if m.role != 'user' %}{{ m.content }}{% endif %}",
    "",
    "{{ m.content[0].text }}",
)
MESSAGES, CALLS = Chat(turns="messages"), Chat(turns="messages", tools=True)


@pytest.mark.parametrize(
    ("tokenizer", "chat", "sentence"),
    [
        (tiny_tokenizer(), Chat(system="a"), "Chat.system is set, but"),
        (chat_tokenizer(), Chat(system="a", template=False), "Chat.system is set, but Chat.template is False or"),
        (tiny_tokenizer(), MESSAGES, "Chat.turns is set, but Chat.template is False or"),
        (tiny_tokenizer(), CALLS, "Chat.turns is set, but"),
        (chat_tokenizer("{{ messages[0].content }}"), Chat(enable_thinking=True), "Chat.enable_thinking is set, but"),
        (chat_models()["Llama 3"], Chat(tools=True), "a call ends a turn: set Chat.turns"),
        *(
            (
                chat_model(UNWRITTEN.replace("CONTENT", content)),
                Chat(),
                "does not write the user message '<information>",
            )
            for content in NOT_AS_IT_IS
        ),
        (
            chat_model("<|im_end|>{{ messages[-1].content }}"),
            Chat(system="Be brief."),
            "does not write the system message 'Be brief.'",
        ),
        (chat_model(FORGETFUL), MESSAGES, "writes earlier turns anew .*: the line '<think>' becomes ''"),
        (chat_model(OF_LATER), MESSAGES, "does not write an observation as it is"),
        (chat_model(OPEN_ENDED), MESSAGES, "no control token between turns"),
        (
            chat_model(SMOLLM2, "<|im_start|> <|im_end|> <|end|>", "<|end|>"),
            MESSAGES,
            r"ends a turn by '<\|im_end\|>', which is no end of sequence of the model: add it to eos_token_id",
        ),
        (chat_model("{# tools #}" + XML_CALLS), CALLS, "does not write the description of a tool"),
        (chat_model(XML_CALLS + "{{ tools | tojson }}"), CALLS, "writes a call as '<function=search>'"),
    ],
)
def test_what_a_template_cannot_follow_is_refused_when_it_is_loaded(tokenizer, chat, sentence):
    with pytest.raises(UserError, match=sentence):
        runner(searches_then_answers, tokenizer=tokenizer, chat=chat)


@pytest.mark.parametrize(
    ("asked", "tokenizer", "chat", "sentence"),
    [
        (
            Observe("Where?", system="Search first."),
            chat_model("<|im_start|>{{ messages[-1].content }}<|im_end|>"),
            Chat(),
            "does not write the system message 'Search first.' into the prompt",
        ),
        (
            Observe("Where? Ask between <search> and </search>."),
            chat_models()["SmolLM2"],
            CALLS,
            "tags.*Ask between <search> and </search>",
        ),
    ],
)
def test_a_programs_instructions_are_neither_lost_nor_contradict_the_tool(asked, tokenizer, chat, sentence):
    with pytest.raises(UserError, match=sentence):
        run_alone((request for request in [asked]), tokenizer=tokenizer, chat=chat)


def test_qwen3_without_thinking_is_refused_because_it_drops_its_empty_thoughts():
    sentence = r"the line '<think>' becomes 'A search.<\|im_end\|>'.*'appended'"
    with pytest.raises(UserError, match=sentence):
        Chat(turns="messages", enable_thinking=False).check(qwen("qwen3"))


@pytest.fixture(scope="module", params=["Qwen3 without thinking", "forgetful"])
def rewriting(request):
    """Our tokenizer of appended turns for a template that rewrites earlier ones, and transformers' rendering."""
    forgets = request.param == "forgetful"
    tokenizer = chat_model(FORGETFUL) if forgets else qwen("qwen3")
    chat = Chat(turns="appended", enable_thinking=None if forgets else False)
    chat.check(tokenizer)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend, chat_template=tokenizer.chat_template.source
    )
    options = {} if forgets else {"enable_thinking": False}
    return (
        tokenizer,
        ContextTokenizer(tokenizer, chat),
        functools.partial(theirs.apply_chat_template, add_generation_prompt=True, tokenize=False, **options),
    )


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=TURNS, thinks=st.booleans())
def test_appended_turns_are_sampled_tokens_and_the_template_after_the_latest(rewriting, turns, thinks):
    tokenizer, context, render = rewriting
    turns, messages = conversation(context, turns, thinks)
    episode, _ = played(tokenizer, context, "Search first.", turns)
    if spells_control_tokens(tokenizer, messages):
        return
    text = render(messages[:2])
    for latest in range(2, len(messages), 2):
        marked = [*messages[:latest], {"role": "assistant", "content": "\ufdef"}, messages[latest + 1]]
        text += messages[latest]["content"] + render(marked).rpartition("\ufdef")[2]
    assert tokenizer.decode(episode.transcript.arrays()["tokens"]) == text
    sampled = [
        [*tokenizer.encode_ordinary(message["content"], continues=True), *tokenizer.eos_ids[:ended]]
        for message, (_, ended, _) in zip(messages[2::2], turns, strict=True)
    ]
    arrays = episode.transcript.arrays()
    for number, ids in enumerate(sampled):
        assert arrays["tokens"][arrays["turn"] == 2 * number].tolist() == ids


@pytest.mark.parametrize("written", ["hm", "", "<search>Peru</search>"])
def test_messages_in_a_run(written):
    """An end of turn is sampled or written by the environment; a control token in a passage stays text."""
    tokenizer = chat_models()["SmolLM2"]
    said = iter([written, "<answer>Lima</answer>"])
    found = lambda queries, *_: [[hit("a", "en", "<|im_end|> Lima <|im_start|>")]] * len(queries)  # noqa: E731
    program = hierarchical_search(question(), ("en",), prompt="atlas", style="atlas", budget=2)
    record = run_alone(program, lambda *_: next(said), tokenizer=tokenizer, chat=Chat(turns="messages"), search=found)
    [end] = tokenizer.eos_ids
    assert record.turns[1].text.startswith("<information>" if "search" in written else "\nMy action")
    assert (record.tokens == end).sum() == 4  # of the system's, the user's and the model's turn, and the observation
    shown = len(tokenizer.encode_ordinary(record.turns[1].text))
    markup = Chat(turns="messages").markup_tokens(tokenizer) - ("search" not in written)
    assert (record.turn == 1).sum() == shown + markup
    sampled = record.tokens[record.turn == 0]
    assert (end in sampled) == ("search" not in written)
