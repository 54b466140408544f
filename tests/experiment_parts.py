"""A policy, an encoder and collections small enough to run whole experiments in seconds."""

import dataclasses
import functools
import json

import gin
import jax
import numpy as np
import orbax.checkpoint as ocp
from support import tiny_config
from support.pretended_collections import PretendedCollections

from lcrag import main
from lcrag.atlas import build_world
from lcrag.atlas.facts import query_text, section_of, subject_of
from lcrag.data.questions import LCRL_LANGUAGES
from lcrag.files import WEIGHTS
from lcrag.policy import initialise, load_tokenizer, make_mesh, save_hugging_face
from lcrag.retrieval import BertConfig, EncoderSettings, Hit, build_collection, initialise_encoder

TOKENIZER = WEIGHTS / "tokenizer"
PASSAGES = 6
TIMINGS = ("seconds/", "tokens_per_second/", "flops_per_second/", "mfu/", "device/", "idle/", "compiled_shapes")
OPENINGS, CLOSINGS = ("<search>", "<answer>"), ("</search>", "</answer>")
WORDS = (" Botswana", " Vietnam", " Lituania")
# What a policy that knows nothing of the world writes: (before, behind, logit of what is behind).
HABITS = (((), OPENINGS, 12.0), (OPENINGS, WORDS, 12.0), (WORDS, CLOSINGS, 12.0), (WORDS, WORDS, 10.0))

SIZES = (
    "policy.mesh=@one_device()",
    "Sampler.slots=6",
    "Sampler.context=160",
    "Sampler.block=8",
    "Sampler.windows=()",
    "Sampler.append_rows=(6,)",
    "Sampler.append_tokens=(48,)",
    "Layout.row_lengths=(160,)",
    "Layout.rows=4",
    "Layout.policy_shares=(1.0,)",
    "sft/Layout.row_lengths=(480,)",
    "sft/Layout.rows=2",
    "sft/Layout.min_micro_batches=16",
    "sft/Layout.min_episodes=32",
    "sft/adamw.steps=8",
    "sft/adamw.learning_rate=1e-2",
    "Runner.max_tokens=10",
    "hierarchical_search.observation_tokens=48",
    "train/atlas_questions.limit=6",
    "train/atlas_questions.copyable=False",
    "held_out/atlas_questions.limit=1",
    "train.questions_per_step=1",
    "critic/adamw.learning_rate=1e-2",
    "adamw.learning_rate=4e-4",
    "adamw.steps=6",  # one compiled update serves runs of any number of steps, as one shape does any episodes
    "Evaluation.references={}",
)


@gin.configurable
def one_device():
    """A mesh of the first device: what a laptop has."""
    return make_mesh(devices=jax.devices()[:1])


class ExactCollections(PretendedCollections):
    """Finds the atlas's passage whose title and label are the query, and nothing else."""

    def hits(self, query, language, k):
        found = _passages_by_query(language).get(query)
        return [Hit(id=found.id, title=found.title, text=found.text, score=1.0, language=language)] if found else []


@functools.cache
def _passages_by_query(language):
    world = build_world(0)
    return {
        query_text(language, fact.relation, world.name(subject_of(fact), language).text): world.passage(
            section_of(fact), language
        )
        for fact in world.facts
        if fact.id in world.holdings[language]
    }


gin.external_configurable(ExactCollections, "exact_collections")


@gin.configurable
def four_devices():
    """A mesh that divides episodes and parameters."""
    return make_mesh(data=2, fsdp=2, devices=jax.devices()[:4])


@gin.configurable
def not_finite(steps, fair):
    """A reward that is too large for a finite update in some steps, and the given one in all others."""

    def reward(episodes):
        large = np.where(np.arange(len(episodes.answers)) % 2, 3e38, -3e38)
        return {name: np.where(episodes.step in steps, large, values) for name, values in fair(episodes).items()}

    return reward


@gin.configurable
def lengths():
    """A reward that differs, whatever is answered."""
    return lambda episodes: {"total": np.array([float(len(answer or "")) for answer in episodes.answers])}


def save_tiny_policy(folder, seed=0):
    """Writes a random policy with the atlas's tokenizer that mostly opens a tag, says a word or two and closes one."""
    tokenizer = load_tokenizer(TOKENIZER)
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size, layers=1, tie_embeddings=False)
    params = jax.device_get(initialise(config, jax.random.key(seed)))
    embedding, unembedding = params["embedding"].copy(), params["unembedding"].copy()
    kinds = np.zeros(config.vocabulary_size, int)  # each kind of last token has an axis of its own
    for kind, texts in enumerate((OPENINGS, WORDS), start=1):
        kinds[[tokenizer.encode(text)[-1] for text in texts]] = kind
    embedding[np.arange(len(kinds)), kinds] += 4.0
    for before, behind, logit in HABITS:
        kind = kinds[tokenizer.encode(before[0])[-1]] if before else 0
        unembedding[[tokenizer.encode(text)[0] for text in behind], kind] += logit / np.sqrt(config.width)
    params |= {"embedding": embedding, "unembedding": unembedding}
    save_hugging_face(folder, config, params, eos_ids=tokenizer.eos_ids)
    tokenizer.backend.save(str(folder / "tokenizer.json"))


def build_tiny_collections(folder, languages=LCRL_LANGUAGES):
    """A few passages in each language behind an untrained encoder."""
    tokenizer = load_tokenizer(TOKENIZER)
    config = BertConfig(
        vocab_size=tokenizer.vocabulary_size,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
    )
    encoder = initialise_encoder(config, EncoderSettings(max_tokens=32), tokenizer.backend)
    world = dataclasses.replace(build_world(0), facts=build_world(0).facts[: 8 * PASSAGES])  # no language has all
    for language in languages:
        build_collection(world.passages(language)[:PASSAGES], encoder, folder, language=language)


def changed(variant):
    """The bindings of a study's variant, as `run` takes them."""
    return tuple(binding.replace(" = ", "=", 1) for binding in variant.bound())


def words_of(command, folder, *bindings, words=(), gin_files=(), output=None):
    """A command line with everything tiny; `folder` holds `policy` and `collections`, later bindings win."""
    parts = [f"policy.folder='{folder / 'policy'}'", f"load_collections.folder='{folder / 'collections'}'"]
    parts += [f"{name}.collections=@load_collections()" for name in ("train", "evaluate", "sample")]
    line = [command, *words, *(f"--gin_file={name}" for name in ("lcrl/atlas.gin", *gin_files))]
    line += [f"--gin.{binding}" for binding in (*SIZES, *parts, *bindings)]
    return [*line, "--allow_unused", *([f"--output_dir={output}"] if output else [])]


def run(*words, **options):
    """Runs a command line in this process, as a fresh process would; returns its exit status."""
    gin.clear_config()
    return main.run(words_of(*words, **options))


def assert_mistake(capture, *parts):
    """Standard error is one line of lcrag's with all the parts."""
    error = capture.readouterr().err
    assert error.startswith("lcrag: error: "), error
    assert error.count("\n") == 1, error
    for part in parts:
        assert part in error, error


def json_lines(path):
    """The objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def written_episodes(folder, name):
    """The rows of a file of episodes in a run's folder, without wall-clock times."""
    return [{**row, "seconds": None} for row in json_lines(folder / "episodes" / f"{name}.jsonl")]


def saved_state(folder, step):
    """Every array of a checkpoint of a run, by its path."""
    state = ocp.StandardCheckpointer().restore(folder / "checkpoints" / str(step) / "default")
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(state)}


def assert_same_bits(arrays, others):
    """Two results of `saved_state` are one, to the last bit."""
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        assert array.dtype == others[name].dtype, name
        assert array.tobytes() == others[name].tobytes(), name


def measured(folder, timings=TIMINGS):
    """The records of a run's metrics, without what a clock says."""
    return [
        {name: value for name, value in record.items() if not name.startswith(timings)}
        for record in json_lines(folder / "metrics.jsonl")
    ]


def contents(folder):
    """Every file under `folder` with its bytes, locks aside."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"}
