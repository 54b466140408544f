"""Searches as tool calls: how they are read and written, and their conversations token by token."""

import functools
import json
from pathlib import Path

import pytest
from episode_scripts import hit, played, question, run_alone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.chat_models import OWN_FOLDER, chat_models, of_family, said_and_shown

from lcrag.curation.rows import RowEncoder
from lcrag.data.demonstrations import DemonstratedTurn, Demonstration
from lcrag.episodes import Answer, Chat, Invalid, SearchAction, parse_action
from lcrag.episodes.chat import ContextTokenizer
from lcrag.episodes.programs import TRY_AGAIN
from lcrag.episodes.programs import search_r1 as search_r1_prompt
from lcrag.episodes.tools import SCHEMA, CallForm
from lcrag.methods.baselines.searches import search_o1, search_r1, step_search
from lcrag.methods.globalrag.program import globalrag
from lcrag.methods.lcrl.program import hierarchical_search
from lcrag.methods.r_search.program import r_search
from lcrag.methods.rag_r1.program import joined, parallel_queries, rag_r1
from lcrag.methods.translate_r1.program import translate_and_search

QWEN = CallForm(in_template=True)
LLAMA = CallForm("", "", "parameters", in_template=True, with_text=False)
CHAT = Chat(turns="messages", tools=True)


def call(query: object = "Turku", form: CallForm = QWEN, name: str = "search", **more) -> str:
    arguments = {"query": query} | more
    return f"{form.before}{json.dumps({'name': name, form.arguments: arguments})}{form.after}"


@pytest.mark.parametrize("form", [QWEN, LLAMA], ids=["Qwen", "Llama"])
@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("{call}", "Turku"),
        ("<think> hm </think>\n{call}\n ", "Turku"),
        ("{extra}", None),
        ("{unknown}", None),
        ("{number}", None),
        ("{blank}", None),
        ("{tagged}", None),
        ("{list}", None),
        ("{call} and more", None),
        ("{call}\n{call}", None),  # several calls, for a program of single queries
        ('The rule {{"name": "search"}} is not a call', None),
        ('{{"name": "search"}}', None),
        ("{{'name': 'search'}}", None),
        ('{{"answer": "Turku"}}', None),
        ("<search> Turku </search>", None),
        ("", None),
        ("{deep}", None),
    ],
)
def test_a_call_is_the_search_that_a_program_reads(form, text, query):
    places = {
        "call": call(form=form),
        "extra": call(form=form, k=3),
        "unknown": call(form=form, name="browse"),
        "number": call(7, form),
        "blank": call(" ", form),
        "tagged": call("<answer>Turku</answer>", form),
        "list": call(["Turku"], form),
        "deep": form.before + "[" * 10**5 + form.after,
    }
    text = text.format(**places)
    action = parse_action(form.as_tags(text))
    assert action == SearchAction(query) if query else isinstance(action, Invalid)
    if query is None:  # the policy's text stays as it is, except that tags are no search
        assert form.as_tags(text) == text.replace("<search>", "[search]").replace("</search>", "[/search]")


@pytest.mark.parametrize("form", [QWEN, LLAMA], ids=["Qwen", "Llama"])
def test_malformed_calls_and_answers(form):
    cut = call(form=form)[:-2]
    assert isinstance(parse_action(form.as_tags(cut)), Invalid)
    assert parse_action(form.as_tags(f"{cut} <answer>Lima</answer>")) == Answer("Lima")
    assert isinstance(parse_action(form.as_tags(f"{call('a', form)}\n{call(1, form)}", joined)), Invalid)
    said = form.as_tags(call("\ud800 x", form))
    assert parse_action(said) == SearchAction("\ufffd x")


def test_a_list_of_calls_and_calls_between_texts():
    listed = f"<tool_call>[{call('a', CallForm('', ''))}, {call('b', CallForm('', ''))}]</tool_call>"  # SmolLM2 1.7B
    assert QWEN.split(listed) == ("", ["a", "b"])
    assert QWEN.split(f"{call('a')} then {call('b')}")[1] == []
    assert QWEN.split(f"{call('a')}\n{call('b')}")[1] == ["a", "b"]


QUERY = '{"query": "Turku"}'


@pytest.mark.parametrize("form", [QWEN, LLAMA], ids=["Qwen", "Llama"])
@pytest.mark.parametrize(
    "value",
    [
        '{"type": "function", "name": "search", "parameters": QUERY}',
        '{"name": "search", "arguments": QUERY, "id": "call_1", "type": "function"}',
        '{"type": "function", "function": {"name": "search", "arguments": QUERY}}',
        '{"name": "search", "arguments": "{\\"query\\": \\"Turku\\"}"}',
        '```json\n{"name": "search", "parameters": QUERY}\n```',
        '```\n{"name": "search", "parameters": QUERY}\n``` ',
    ],
)
@pytest.mark.parametrize("said", ["", "Hm.\n", "```a```\n"])
def test_models_write_calls_in_several_ways(form, value, said):
    value = value.replace("QUERY", QUERY)
    assert form.split(f"{said}{form.before}{value}{form.after}") == (said, ["Turku"])
    if form is LLAMA:
        assert form.split(f"{said}<|python_tag|>{value}")[1] == (["Turku"] if "```" not in value else [])
        assert form.split(f"Hm: <|python_tag|> {{}}; {value}") == (f"Hm: <|python_tag|> {{}}; {value}", [])


@pytest.mark.parametrize("form", [QWEN, LLAMA], ids=["Qwen", "Llama"])
@pytest.mark.parametrize(
    "value",
    [
        '{"type": "tool", "name": "search", "parameters": QUERY}',
        '{"name": "search", "parameters": QUERY, "arguments": QUERY}',
        '{"name": "search", "parameters": QUERY, "k": 3}',
        '{"name": "search", "query": "Turku"}',
        '{"name": "search", "arguments": "Turku"}',
        '{"name": "search", "arguments": "[[[["}',
        '{"type": "function", "function": "search"}',
        'search.call(query="Turku")',
        '<|python_tag|>search.call(query="Turku")',
    ],
)
def test_other_ways_are_text(form, value):
    text = f"{form.before}{value.replace('QUERY', QUERY)}{form.after}"
    assert form.split(text) == (text, [])


@given(st.lists(st.text(min_size=1, max_size=8).filter(str.strip), min_size=1, max_size=3, unique_by=str.strip))
def test_the_queries_of_parallel_calls_are_those_of_the_program(queries):
    every_mark = any(all(mark in query for mark in '"”»」』') for query in queries)
    text = "".join(map(call, queries))
    read = QWEN.split(text)[1]
    if read and len(queries) > 1 and not every_mark:
        action = parse_action(QWEN.as_tags(text, joined))
        assert isinstance(action, SearchAction)
        assert parallel_queries(action.query, 3).asked == tuple(dict.fromkeys(read))


@pytest.mark.parametrize("form", [QWEN, LLAMA], ids=["Qwen", "Llama"])
@given(said=st.sampled_from(["", "<think> hm </think>", "a\n"]), query=st.text(min_size=1, max_size=9))
def test_a_demonstrated_search_is_a_call_that_reads_back(form, said, query):
    text = f"{said}<search> {query}</search>"
    action = parse_action(text)
    assert parse_action(form.as_tags(form.as_call(text))) == action or isinstance(action, Invalid)
    assert (form.as_call(text) == text) == isinstance(action, Invalid)
    assert form.as_call(form.as_call(text)) == form.as_call(text)


# --- Conversations ---

WORDS = ["I", "search", "<search>", "Turku?", "\n", "日本", "é", " ", '"', "{", "1", "</answer>", "'s", "\\"]
SAID, SHOWN = said_and_shown(WORDS)


@pytest.fixture(scope="module", params=["SmolLM2", "Llama 3", "Qwen2.5", "Qwen3", OWN_FOLDER])
def family(request):
    tokenizer, theirs = of_family(request.param)
    CHAT.check(tokenizer)
    return tokenizer, ContextTokenizer(tokenizer, CHAT), theirs


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    turns=st.lists(st.tuples(SAID, st.lists(SAID, max_size=2), st.booleans(), SHOWN).map(list), min_size=1, max_size=3),
    thinks=st.booleans(),
)
def test_a_dialogue_with_calls_has_the_ids_of_transformers(family, turns, thinks):
    """Sampled ids stand in the context as they are; parsed into messages, the template writes the same conversation."""
    tokenizer, context, theirs = family
    form, native = context.call_form, context.call_form.in_template
    if not form.with_text:  # Llama 3's template writes no text before calls, and one call only
        turns = [("" if queries else said, queries[:1], *others) for said, queries, *others in turns]
    turns = [
        ("<think>\nhm\n</think>\n\n" * (thinks and bool(said)) + said, queries, *others)
        for said, queries, *others in turns
    ]
    texts = [("\n".join(filter(None, (said, form.written(*queries)))), *others) for said, queries, *others in turns]
    episode, read = played(tokenizer, context, "Search by <search> query </search>.", texts, join=joined)
    system = 'Search through the tool "search".'
    if not native:
        system = f"{system}\n\n{episode.transcript.prompt.partition(system)[2].partition('<|im_end|>')[0].strip()}"
        assert json.dumps(SCHEMA) in system
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Where is Turku?"}]
    for (_, queries, *_), (text, _, shown), said in zip(turns, texts, read, strict=True):
        messages += [form.message(text), {"role": context.role, "content": shown}]
        valid = form.split(text)[1]
        if valid:
            action = parse_action(said)
            assert isinstance(action, SearchAction)
            assert parallel_queries(action.query, 3).asked == tuple(dict.fromkeys(queries)) or len(valid) == 1
        assert ("tool_calls" in messages[-2]) == (bool(valid) and native)
    spoken = "".join(turn.text for turn in episode.transcript.turns)
    if not any(token in spoken for token in tokenizer.special_tokens):
        tools = {"tools": [SCHEMA]} if native else {}
        ids = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **tools)
        assert episode.transcript.arrays()["tokens"].tolist() == ids


# --- Programs ---


def called(program, texts, tokenizer):
    """The record of a program whose policy writes these texts, and the queries of its searches."""
    asked, said = [], iter(texts)

    def search(queries, languages, passages):
        asked.extend(queries)
        return [[hit(query, "en", f"About {query}")] for query in queries]

    options = {"tokenizer": tokenizer, "chat": CHAT, "search": search, "context": 3000, "max_tokens": 200}
    return run_alone(program(question(), ("en",)), lambda *_: next(said), **options), asked


@pytest.mark.parametrize("model", ["SmolLM2", "Llama 3"])
def test_search_r1_by_calls(model):
    """A malformed call is answered by the method's correction, in words that fit the tool."""
    tokenizer = chat_models()[model]
    form = CHAT.call_form(tokenizer)
    texts = [call("Peru", form, name="browse"), f"Hm.\n{call('Peru', form)}", "<answer> Lima </answer>"]
    record, asked = called(search_r1, texts, tokenizer)
    assert (asked, record.outcome.answer, record.outcome.invalid_actions) == (["Peru"], "Lima", 1)
    assert [turn.text for turn in record.turns if turn.by == "policy"] == texts
    assert "browse" not in record.prompt and 'through the tool "search"' in record.prompt
    assert "<search>" not in record.prompt and SCHEMA["function"]["description"] in record.prompt
    correction = TRY_AGAIN.replace(
        "put the query between <search> and </search>", 'call the tool "search" with the query'
    )
    assert record.turns[1].text == correction
    assert "I should call the tool" in tokenizer.decode(record.tokens[record.turn == 1])
    # A call's closing string ends the turn, and the environment closes it; without one, the policy does.
    [end] = tokenizer.eos_ids
    ended = [end in record.tokens[record.turn == turn] for turn in (0, 2)]
    assert ended == [not form.after] * 2


def test_rag_r1_searches_by_several_calls_in_one_turn():
    tokenizer = chat_models()["SmolLM2"]
    texts = [f"{call('Peru, capital')}\n{call('Lima')}", "<answer> Lima </answer>"]
    record, asked = called(rag_r1, texts, tokenizer)
    assert (asked, record.counts["searches"], record.outcome.answer) == (["Peru, capital", "Lima"], 2, "Lima")
    assert "calls of the tool" in record.prompt
    assert tokenizer.eos_ids[0] in record.tokens[record.turn == 0]


@pytest.mark.parametrize(
    "program",
    [
        *(search_r1, rag_r1, r_search, globalrag, translate_and_search, hierarchical_search, search_o1, step_search),
        functools.partial(r_search, wording="paraphrase"),
        functools.partial(globalrag, wording="short"),
    ],
)
def test_no_instructions_speak_of_the_tags_of_a_search(program):
    context = ContextTokenizer(chat_models()["SmolLM2"], CHAT)
    first = next(program(question(), ("en",)))
    assert "<search>" in f"{first.system}{first.text}"
    placed = context.place(first.text, opens=True, system=first.system, offers=first.tools)
    assert 'the tool "search"' in placed.text and "<search>" not in placed.text
    assert "Things Fall Apart" not in placed.text or call("author of Things Fall Apart") in placed.text
    assert (placed.written, placed.system) == (first.text, first.system)


def test_a_program_without_a_search_is_offered_no_tool():
    context = ContextTokenizer(chat_models()["SmolLM2"], CHAT)
    assert "tool" not in context.place("Where is Turku?", opens=True, offers=()).text
    assert "tool" in context.place("Where is Turku?", opens=True, offers=("search",)).text
    # Nor is a completion outside the dialogue, which may quote one.
    quoted = context.place("Refine: <search> Turku </search>", opens=True).text
    assert "tool" not in quoted and "<search> Turku </search>" in quoted


def test_demonstrations_in_tags_become_calls_whose_end_of_turn_is_learned():
    tokenizer = chat_models()["SmolLM2"]
    turns = [("policy", "<search> Peru</search>"), ("environment", "Lima."), ("policy", "<answer> Lima</answer>")]
    demonstration = Demonstration(
        opening=search_r1_prompt(question()),
        turns=tuple(DemonstratedTurn(by=by, text=text) for by, text in turns),
        topic="",
        path=Path(),
        line=1,
    )
    row = RowEncoder(tokenizer, CHAT, 2000).demonstration(demonstration)
    learned = tokenizer.decode(row.tokens[row.by_policy])
    assert learned == f"{call('Peru')}<|im_end|><answer> Lima</answer><|im_end|>"
    text = tokenizer.decode(row.tokens)
    assert f"{call('Peru')}<|im_end|>\n<|im_start|>user\nLima.<|im_end|>\n<|im_start|>assistant\n<answer>" in text
