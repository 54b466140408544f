"""A rehearsal: what its script writes, what is measured of the episodes, and what is computed from them."""

import functools
import json

import numpy as np
import pytest
from experiment_parts import run
from jax.sharding import AbstractMesh
from support import tiny_config, tiny_tokenizer
from support.pretended_collections import PretendedCollections
from support.scripted_sampler import ScriptedSampler

from lcrag.commands.compile.lowering import CompilePlan, Cost
from lcrag.commands.rehearse.answerable import answerable, passages_here, rows_of
from lcrag.commands.rehearse.costs import Phase, Workload, compiled_shares, packed, phases_of, run_costs
from lcrag.commands.rehearse.episodes import lengths, play_script, tokens_per_word
from lcrag.commands.rehearse.scripted_policy import Script, turned
from lcrag.commands.rehearse.tiny_parts import TinyParts
from lcrag.composition.components import Computation
from lcrag.composition.stand_ins import Call
from lcrag.data.questions import Question
from lcrag.episodes import Runner
from lcrag.errors import UserError
from lcrag.learning import Critic, Layout, PolicyGradient, adamw
from lcrag.methods.baselines import flare, sure
from lcrag.methods.lcrl import hierarchical_search
from lcrag.methods.rag_r1.parallel_queries import parallel_queries
from lcrag.methods.translate_r1.translation_tool import call_in
from lcrag.policy import parameter_count
from lcrag.policy.accelerators import accelerator_named
from lcrag.policy.sharding import MESH_AXES
from lcrag.retrieval import Passage
from lcrag.sampling import SamplerConfig, SamplingParameters

CONTEXT = 1500
FAST = (
    "rehearse.prompts=4",
    "rehearse.sampled_tokens=4",
    "Runner.max_tokens=40",
    "Layout.min_micro_batches=1",
    "Method.samples=1",
)
TPU = accelerator_named("v5e")


def asked(number, language="en", text="Who wrote Hamlet?", answers=("Shakespeare",)):
    return Question(id=str(number), dataset="plays", language=language, text=text, answers=answers)


def played(*questions, program=hierarchical_search, search=None, limits=None, **settings):
    """Plays a program with passages of the question's own words."""
    search = search or PretendedCollections(("en", "fi")).search
    sampler = ScriptedSampler(tiny_tokenizer(), lambda context, request: "", slots=2, context=CONTEXT)
    runner = Runner(sampler=sampler, tokenizer=tiny_tokenizer(), search=search, max_tokens=60, **(limits or {}))
    built = functools.partial(program, collections=("en", "fi"), **settings)
    return play_script(questions, built, runner, tiny_tokenizer(), slots=2, generated_tokens=30)


@pytest.fixture(scope="module")
def two_searches():
    return played(
        asked(0), asked(1, "fi", "Kuka?"), asked(2, text="Who?"), budget=2, passages=1, observation_tokens=200
    )


def test_the_script_searches_for_its_whole_budget(two_searches):
    assert [each.record.counts["retrieval_rounds"] for each in two_searches.played] == [2, 2, 2]


def test_the_script_answers_at_the_end(two_searches):
    assert all(each.record.outcome.answer for each in two_searches.played)


def test_generations_have_the_assumed_length(two_searches):
    assert {length for each in two_searches.played for length in each.turn_tokens("policy")} == {30}


def test_tokens_are_counted_as_they_stand_in_the_context(two_searches):
    for each in two_searches.played:
        turns = sum(each.turn_tokens("policy")) + sum(each.turn_tokens("environment"))
        assert each.prompt_tokens + turns == len(each.record.tokens)


def test_searches_are_timed_with_as_many_clients_as_slots(two_searches):
    assert two_searches.clients == 2
    assert two_searches.search.pairs[0] == 2


def test_several_queries_are_the_question_and_its_beginnings():
    script = Script(questions={7: asked(0, text="Who, in 1600, wrote Hamlet?")}, queries=3, generated_tokens=30)
    ending = script.ending(SamplingParameters(stop=("</search>", "</answer>"), max_tokens=50, episode=7), 0)
    written = ending.removeprefix("<search>").removesuffix("</search>")
    assert parallel_queries(written, 3).asked == ("Who, in 1600, wrote Hamlet?", "Who, in 1600, wrot", "Who, in 1")


@pytest.mark.parametrize(("text", "second"), [("Who wrote Hamlet?", "wrote Hamlet? Who"), ("谁写的？", "写的？谁")])
def test_no_search_repeats_a_query(text, second):
    assert (turned(text, 0), turned(text, 1)) == (text, second)


def test_a_translation_is_asked_for_until_the_calls_are_made():
    script = Script(questions={0: asked(0)}, calls=1, generated_tokens=30)
    request = SamplingParameters(stop=("</tool_call>", "</answer>"), max_tokens=50)
    assert call_in(script.ending(request, 0)).text == "Who wrote Hamlet?"
    assert script.ending(request, 1).startswith("<answer>")


@pytest.mark.parametrize(("program", "completions"), [(flare, 16), (sure, 6)])
def test_programs_that_complete_outside_the_dialogue_are_played(program, completions):
    [each] = played(asked(0), program=program, wording="atlas").played
    assert each.record.counts["completions"] >= completions


def test_a_cut_observation_is_told_from_a_whole_one():
    whole = played(asked(0), budget=1, passages=1, observation_tokens=500).played[0]
    cut = played(asked(0), budget=1, passages=3, observation_tokens=60).played[0]
    assert (whole.truncated, cut.truncated) == ([False], [True])


def test_an_answer_that_is_cut_off_is_found_but_not_shown():
    [each] = played(asked(0, answers=("2",)), budget=1, passages=3, observation_tokens=60).played
    assert (each.answer_found, each.answer_shown) == (True, False)


def test_lengths_of_a_full_context_say_so():
    few = played(asked(0), budget=9, passages=3, observation_tokens=400)
    assert lengths(few.played)["full_contexts"] == 1.0


def test_failing_searches_are_counted_with_their_error():
    episodes = played(asked(0, text="break this"), budget=1, limits={"retries": Runner.retries.__class__(1, 0.0)})
    assert dict(episodes.search.errors) == {"RuntimeError: something broke": 1}
    assert lengths(episodes.played)["retrieval_failures"] == 1


def test_tokens_per_word_count_characters_of_scripts_without_spaces():
    tokenizer = tiny_tokenizer()
    found = tokens_per_word({"en": ["passage passage"], "zh": ["通貨"]}, tokenizer)
    assert found == {
        "en": len(tokenizer.encode("passage passage")) / 2,
        "zh": len(tokenizer.encode("通貨")) / 2,
    }


def passages(*texts):
    return [Passage(id=str(number), title="", text=text) for number, text in enumerate(texts)]


PASSAGES = {
    "en": passages("nothing", "It is the U. S. ARMY, of course."),
    "fi": passages("Helsinki on pääkaupunki."),
    "zh": passages("它的货币是欧元。"),
}


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (asked(0, "en", answers=("U-S Army",)), (True, False, True, False)),  # not with these characters
        (asked(0, "en", answers=("Helsinki",)), (False, False, True, True)),  # in another language's collection
        (asked(0, "zh", answers=("欧元",)), (True, True, True, True)),  # no spaces between words
        (asked(0, "fi", answers=("Helsink", "")), (False, False, False, False)),  # part of a word
    ],
)
def test_answerable_questions(question, expected):
    shares = answerable([question], PASSAGES, most_passages=10)[question.language]
    assert tuple(shares[name] for name in ("native", "native_exact", "anywhere", "anywhere_exact")) == expected


def test_a_part_of_the_passages_gives_a_lower_bound():
    assert len(rows_of(PASSAGES["en"], most_passages=1)) == 1
    assert answerable([asked(0, answers=("army",))], PASSAGES, most_passages=1)["en"]["native"] == 0


def test_remote_collections_are_not_looked_into():
    assert passages_here(PretendedCollections()) is None


def plan(critic=None, **objective):
    return CompilePlan(
        config=tiny_config(compute_dtype="bfloat16", tie_embeddings=True),
        mesh=AbstractMesh((2, 2, 2), MESH_AXES),
        objective=PolicyGradient(**objective),
        optimizer=adamw(learning_rate=1e-6, steps=1),
        layout=Layout(rows=4, row_lengths=(64, 128)),
        sampler=SamplerConfig(slots=8, context=128),
        critic=critic,
    )


WORK = Workload(
    tokens=np.full(16, 60),
    policy_tokens=np.full(16, 20),
    sampled_tokens=320.0,
    appended_tokens=500.0,
    attended_tokens=40.0,
)


def test_decoding_takes_a_step_for_every_token_of_the_slots():
    decode = phases_of(plan(), WORK)[0]
    assert decode.units == 320 / 8
    cache = 2 * 2 * 8 * 2 * 41 * 8 * 2  # keys and values, layers, slots, heads, positions, width, bytes
    assert decode.cost.bytes == parameter_count(plan().config) * 2 / 2 + cache / 8


def test_a_reference_adds_a_forward_pass_and_a_critic_its_own_work():
    def flops(plan, name):
        found = [each.cost.flops for each in phases_of(plan, WORK) if each.name == name]
        return found[0] if found else 0.0

    critic = Critic(optimizer=adamw(learning_rate=1e-5, steps=1))
    assert flops(plan(), "scores") == 0
    assert flops(plan(kl_coefficient=0.1), "scores") == pytest.approx(flops(plan(), "update") / 3)
    assert flops(plan(), "update") < flops(plan(critic), "update") < 2 * flops(plan(), "update")


def test_rows_are_counted_with_their_padding():
    assert packed(plan(), WORK, parts=1) == (16 * 64, 16 * 24)  # an episode of 60 tokens in each row of 64
    assert packed(plan(), WORK, parts=2) == (2 * 8 * 64, 2 * 8 * 24)


def test_an_evaluation_learns_nothing():
    assert [each.name for each in phases_of(plan(), WORK, learns=False)] == ["decode", "append"]


def test_the_cost_of_a_run_by_hand():
    phases = [Phase(name="decode", units=10, cost=Cost(unit="", flops=TPU.flops_per_second))]
    shared = {"devices": 4, "steps": 360, "retrieval_seconds": 5.0}
    full, half = (run_costs(phases, WORK, TPU, efficiency=share, **shared) for share in (1.0, 0.5))
    assert (full["step_seconds"], half["step_seconds"]) == (15.0, 25.0)
    assert (full["hours"], full["device_hours"]) == (1.5, 6.0)
    assert full["tokens_per_day"] == (320 + 16 * 40) / 15 * 86400


def test_each_phase_at_the_share_that_its_program_reaches():
    programs = [{"program": "update", "share_of_floor": 0.5}, {"program": "append", "share_of_floor": 0.8}]
    assert compiled_shares({"programs": programs}) is None
    programs += [{"program": "decode", "share_of_floor": 1.1}, {"program": "hand_over", "share_of_floor": None}]
    shares = compiled_shares({"programs": programs})
    assert shares == {"decode": 1.0, "append": 0.8, "scores": 0.5, "update": 0.5}
    second = Cost(unit="", flops=TPU.flops_per_second)
    phases = [Phase(name=name, units=4, cost=second) for name in ("append", "update")]
    found = run_costs(phases, WORK, TPU, devices=36, steps=2, retrieval_seconds=0.0, efficiency=shares)
    assert found["phase_seconds"] == {"append": 5.0, "update": 8.0}
    assert found["device_hours_of_1000_steps"] == pytest.approx(130)


def test_a_training_is_rehearsed(tiny, tmp_path):
    assert run("rehearse", tiny, *FAST, "rehearse.topology='v5e:1'", words=("train",), output=tmp_path) == 0
    found = json.loads((tmp_path / "rehearsal.json").read_text())
    assert found["lengths"]["all"]["searches"] == 2
    assert found["answerable"]["languages"]["fi"]["questions"] == 6
    assert found["retrieval"]["failed_calls"] == 0
    assert found["sampled"]["metrics"]["episodes"] == 8
    assert found["costs"]["episodes"] == 8
    assert set(found["costs"]["runs"][0]["phase_seconds"]) == {"decode", "append", "update"}
    assert "(measured)" in (tmp_path / "rehearsal.md").read_text()


def test_an_evaluation_is_rehearsed(tiny, capfd):
    assert run("rehearse", tiny, *FAST, words=("evaluate",)) == 0
    assert "Lengths of episodes in tokens (measured)" in capfd.readouterr().out


def test_a_topology_that_the_mesh_does_not_fill_is_refused():
    parts = TinyParts(mesh_sizes={"data": 2, "fsdp": 1, "tensor": 1})
    with pytest.raises(UserError, match="needs 2 devices, but the topology has 16"):
        parts.platform(16)


def test_a_mesh_may_take_all_devices():
    parts = TinyParts(mesh_sizes={"data": -1, "fsdp": 2, "tensor": 2})
    assert dict(parts.platform(16).shape) == {"data": 4, "fsdp": 2, "tensor": 2}


@pytest.mark.parametrize(("folder", "missing"), [("nowhere", ()), ("", ("folder",))])
def test_a_policy_needs_a_folder_with_its_tokenizer(folder, missing):
    arguments = {"folder": folder, "computation": Computation(), "mesh": None}
    with pytest.raises(UserError, match="nowhere|policy.folder has no value"):
        TinyParts().policy(Call("policy", "", arguments, missing, lambda: None))
