"""Every experiment with every baseline, change of the objective, data set and platform composes to what its files say.

Nothing is loaded: parameters, questions and collections are named only (see `lcrag describe`). The fast tests take
every pair of levels of two factors at least once, the slow one all combinations.
"""

import itertools
import math

import pytest

from lcrag.commands.describe.named_parts import NamedCollections, NamedParts, Source
from lcrag.commands.describe.run_plan import episodes, opening, opening_text
from lcrag.composition.commands import compose
from lcrag.composition.components import configured_sampler
from lcrag.composition.stand_ins import bound_settings
from lcrag.episodes.programs import program_name, program_settings

PROGRAMS = {
    "lcrl": "hierarchical_search",
    "r_search": "r_search",
    "rag_r1": "rag_r1",
    "globalrag": "globalrag",
    "translate_r1": "translate_r1",
}
BASELINES = {
    "": "",
    "adaptive_rag": "adaptive_rag",
    "d_rag": "d_rag",
    "direct": "direct_inference",
    "flare": "flare",
    "ircot": "ircot",
    "iter_retgen": "iter_retgen",
    "msearch_r1": "hierarchical_search",
    "rag": "rag",
    "search_o1": "search_o1",
    "search_r1": "search_r1",
    "sft": "rag",
    "sure": "sure",
}
# What each file changes of the loss; `train.critic` stands for PPO.
OBJECTIVES = {
    "": {},
    "dapo": {"clip_high": 0.28, "aggregation": "token_mean", "kl_coefficient": 0.0},
    "dr_grpo": {"aggregation": "constant", "kl_coefficient": 0.0},
    "importance_correction": {"importance_cap": 2.0},
    "ppo": {"aggregation": "token_mean", "kl_coefficient": 0.0},
}
# Where the training and the held-out questions come from.
DATA = {
    "": None,
    "english": ("english_questions", "english_questions"),
    "jsonl": ("jsonl_questions", "jsonl_questions"),
    "mkqa": ("mkqa_questions", "mkqa_questions"),
    "xor_tydi": ("xor_tydi_questions", "xor_tydi_questions"),
    "xquad": ("xquad_questions", "xquad_questions"),
}
PLATFORMS = {"laptop": 1, "single_gpu": 1, "h200": 1, "h100_8": 8, "tpu_v5e_16": 16, "tpu_v5p_64": 64}
FACTORS = (PROGRAMS, BASELINES, OBJECTIVES, DATA, PLATFORMS)
FILES = ["train/jsonl_questions.files = ('train.jsonl',)", "held_out/jsonl_questions.files = ('held_out.jsonl',)"]


def pairwise(factors):
    """Rows with one level of each factor in which every pair of levels of two factors occurs."""
    positions = range(len(factors))
    levels = [list(factor) for factor in factors]
    pairs = {
        ((one, first), (other, second))
        for one, other in itertools.combinations(positions, 2)
        for first, second in itertools.product(levels[one], levels[other])
    }
    rows = []
    while pairs:
        (one, first), (other, second) = min(pairs)
        row = {one: first, other: second}
        for free in positions:
            if free not in row:
                row[free] = max(levels[free], key=lambda level, free=free: len(_new(row | {free: level}, pairs)))
        pairs -= _new(row, pairs)
        rows.append(tuple(row[position] for position in positions))
    return rows


def _new(row, pairs):
    return {pair for pair in itertools.combinations(sorted(row.items()), 2) if pair in pairs}


def files(experiment, baseline="", objective="", data="", platform="h100_8"):
    """The gin files of a composition, in the order of the README: platform, experiment, then what changes it."""
    parts = (("data", data), ("baselines", baseline), ("objective", objective))
    return [
        *([f"platform/{platform}.gin"] if platform else []),
        experiment,
        *(f"{folder}/{name}.gin" for folder, name in parts if name),
    ]


def training(*gin_files):
    """The arguments of `lcrag train`, and what stands for its large parts."""
    parts = NamedParts()

    def unread(call):
        parts.sources.append(Source(name=call.selector, arguments=call.arguments, questions=(), absent="not read"))
        return ()

    bindings = FILES if _reads_files(gin_files) else []
    return compose("train", gin_files, bindings, parts.stand_ins | {"questions": unread}), parts


def _reads_files(gin_files):
    return any(name.startswith(("data/jsonl", "globalrag/paper", "translate_r1/paper")) for name in gin_files)


@pytest.fixture(scope="module")
def alone():
    """What an experiment on some data is without a baseline and on any platform."""
    known = {}

    def found(experiment, data):
        if (experiment, data) not in known:
            composition, parts = training(*files(f"{experiment}/paper.gin", data=data))
            known[experiment, data] = sizes(composition, parts)
        return known[experiment, data]

    return found


def sizes(composition, parts):
    """What must be equal for all methods that are compared on one experiment."""
    given = composition.arguments
    evaluation = given["evaluation"]
    return {
        "episodes": episodes(composition, parts),
        "decodings": (dict(evaluation.temperatures), evaluation.runs, evaluation.max_tokens),
        "evaluated settings": dict(evaluation.program_settings),
        "optimizer": bound_settings("adamw", {}),
        "steps": (given["steps"], given["updates_per_rollout"], given["passes_per_rollout"]),
        "searched": where(given["collections"]),
        "budgets": budgets(given["method"].program),
    }


def where(collections):
    """What is searched, and who encodes its queries; None for methods that search nothing."""
    if isinstance(collections, NamedCollections):
        return collections.name, collections.where, collections.encoder
    return None


def budgets(program):
    """The settings that all programs of an experiment share, those that the program has."""
    settings = program_settings(program)
    inner = [program_settings(each) for each in settings.get("programs", {}).values()]
    shared = "passages", "observation_tokens", "invalid_limit", "budget"
    return {name: own[name] for own in (settings, *inner) for name in shared if name in own}


def check(experiment, baseline, objective, data, platform, alone):
    """Asserts what one composition would train and evaluate."""
    composition, parts = training(*files(f"{experiment}/paper.gin", baseline, objective, data, platform))
    given, own = composition.arguments, alone(experiment, data)
    method, evaluation, name = given["method"], given["evaluation"], BASELINES[baseline] or PROGRAMS[experiment]

    assert program_name(method.program) == name
    evaluated = method.with_settings(evaluation.program_settings)
    assert program_name(evaluated.program) == name
    assert opening_text(opening(method, (), ("en", "fi"))).strip()

    found = sizes(composition, parts)
    shown, shared = found.pop("budgets"), own["budgets"]
    assert {name: value for name, value in shown.items() if name in shared} == {
        n: shared[n] for n in shown.keys() & shared
    }
    assert found == {name: own[name] for name in found}

    changes = OBJECTIVES[objective]
    assert {field: getattr(given["objective"], field) for field in changes} == changes
    assert (given["critic"] is not None) == (objective == "ppo" or experiment == "rag_r1")
    assert math.prod(given["policy"].mesh.shape.values()) == PLATFORMS[platform]
    if DATA[data]:
        sources = {source.name for source in parts.sources}
        trained, held_out = DATA[data]
        assert sources >= {f"train/{trained}", f"held_out/{held_out}"}
    assert "atlas/encoder" not in (where(given["collections"]) or ())
    assert configured_sampler().context >= 2048


@pytest.mark.parametrize(("experiment", "baseline", "objective", "data", "platform"), pairwise(FACTORS))
def test_a_composition_is_what_its_files_say(experiment, baseline, objective, data, platform, alone):
    check(experiment, baseline, objective, data, platform, alone)


@pytest.mark.slow
@pytest.mark.parametrize("experiment", PROGRAMS)
def test_every_composition_is_what_its_files_say(experiment, alone):
    for row in itertools.product(BASELINES, OBJECTIVES, DATA, PLATFORMS):
        check(experiment, *row, alone)


def test_the_matrix_has_every_pair():
    rows = pairwise(FACTORS)
    for one, other in itertools.combinations(range(len(FACTORS)), 2):
        seen = {(row[one], row[other]) for row in rows}
        assert seen == set(itertools.product(FACTORS[one], FACTORS[other]))
    assert len(rows) < math.prod(map(len, FACTORS)) / 20
