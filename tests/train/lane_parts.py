"""Lanes of a tiny policy, and what they sample."""

import hashlib
import json

import gin
import jax
import numpy as np
from lcrag.train.lanes import Lanes
from support import tiny_config, tiny_tokenizer
from support.pretended_collections import PretendedCollections

from lcrag.data.questions import Question
from lcrag.episodes import Generate, Observe, Outcome, Retrieve
from lcrag.policy import Policy, initialise, make_mesh
from lcrag.train.method import Method

BINDINGS = ("Sampler.context = 64", "Sampler.block = 4", "Sampler.append_tokens = (16,)")
STEALING = ("Lanes.stealing = True",)


def question(number, language="en"):
    return Question(id=str(number), dataset="d", language=language, text=f"Capital {number}?", answers=("Lima",))


GROUPS = [(question(0), question(0, "fi")), *((question(number),) for number in range(1, 5))]


def searching(asked, languages):
    """Writes a query, is shown what it finds, and answers."""
    yield Observe(asked.text)
    query = yield Generate(stop=(), max_tokens=3)
    (((hit, *_),),) = yield Retrieve((query,), (asked.language,), 1)
    yield Observe(hit.text[:20])
    return Outcome(answer=(yield Generate(stop=(), max_tokens=4)))


def above_group(episodes):
    """The length of an answer compared with its group's."""
    lengths = np.array([float(len(answer)) for answer in episodes.answers])
    means = [lengths[episodes.group_ids == group].mean() for group in episodes.group_ids]
    return {"total": lengths - means, "length": lengths}


def make_lanes(count, devices=1, reward=above_group, program=searching, bindings=()):
    """Lanes of four slots each; one compiled sampler serves those of all tests."""
    gin.clear_config()
    slots = 4 * count
    own = (f"Lanes.count = {count}", f"Sampler.slots = {slots}", f"Sampler.append_rows = ({slots},)")
    gin.parse_config([*BINDINGS, *own, *bindings])
    config, mesh = tiny_config(layers=1), make_mesh(devices=jax.devices()[:devices])
    policy = Policy("tiny", config, initialise(config, jax.random.key(0), mesh), tiny_tokenizer(), mesh)
    method = Method(name="m", program=program, reward=reward, samples=2)
    return Lanes(policy, PretendedCollections(), method, seed=3)


def rows(scored):
    """The rows of the episodes, without times."""
    return [row | {"seconds": None} for row in scored.episodes_json()]


def digest(lanes):
    """Hashes everything that two rollouts leave, with other parameters in the second."""
    found = []
    for step in range(2):
        scored = lanes.roll_out(GROUPS, 20 * step, policy_version=step, step=step)
        found += [rows(scored), scored.advantages.tolist(), vars(lanes.statistics)["sampled_tokens"]]
        mesh = make_mesh(devices=jax.devices()[: 2 if jax.process_count() == 1 else None])
        lanes.set_params(initialise(tiny_config(layers=1), jax.random.key(1), mesh))
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()
