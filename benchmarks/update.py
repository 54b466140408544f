"""Times a GRPO update, compared with PyTorch on the same episodes and parameters.

    python benchmarks/update.py [--repeats=5] [--only=ragged] [--tiny]

A decoder of four layers, 256 wide, with a vocabulary of 4,096 learns from two batches: 96 ragged episodes with the
lengths of the quickstart's (one or two searches, 30 to 230 tokens, about a quarter of them sampled), and 64 x 256
tokens of which 192 are sampled. The two sides get the same loss and gradient norm, which is checked. lcrag packs ragged
episodes into rows of one length and, apart, into rows of two.

PyTorch runs Qwen2 of `transformers` with one episode a row, padded to the longest of its micro-batch, SDPA without a
mask (padding comes last), the final states of sampled tokens gathered before the unembedding, and AdamW. Of several
sizes of micro-batches the fastest counts, on both sides. PyTorch gets the episodes as they come and, apart, by length.

All sides alternate. Prints median seconds, tokens of episodes per second, the share of the floor (the operations that
the update needs, by formula, over the rate of a matrix product in the same run), and executed / needed operations.
"""

import argparse
import copy
import dataclasses
import functools
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Sequence

import jax
import numpy as np
import torch
import transformers
from timing import report, timed

from lcrag.commands.benchmark import measured_machine
from lcrag.learning import Batch, Layout, PolicyGradient, Trajectory, adamw, initial_state, make_update, pack
from lcrag.policy import (
    DecoderConfig,
    hidden_states,
    initialise,
    make_mesh,
    save_hugging_face,
    unembed_log_probabilities,
)
from lcrag.policy.attention import attended_positions
from lcrag.policy.decoder import block_size
from lcrag.policy.parameters import causal_mean, update_flops

MODEL = DecoderConfig(
    vocabulary_size=4096,
    width=256,
    layers=4,
    heads=4,
    kv_heads=2,
    head_width=64,
    mlp_width=1024,
    max_positions=1024,
    unroll_layers=True,
)
TINY = dataclasses.replace(MODEL, vocabulary_size=512, width=32, layers=2, head_width=8, mlp_width=64)
EPISODES, LONGEST, TWICE = 96, 288, 0.375  # the share of episodes that search twice
PROMPT, SAMPLED, OBSERVED, OBSERVED_AGAIN = (8, 20), (3, 25), (11, 21), (140, 176)  # tokens, at least and below
DENSE, DENSE_TIME, DENSE_PROMPT = 64, 256, 64
OUR_ROWS, SHORT = (2, 4, 8), 192
TORCH_ROWS = (1, 2, 4, 8, 16, 32, 96)
CLIP, BETAS = 1.0, (0.9, 0.95)


def ragged(random: np.random.Generator, vocabulary_size: int) -> Trajectory:
    """Draws an episode of prompt, query, passage and answer; some search again, in all other languages."""
    pieces = [PROMPT, SAMPLED, OBSERVED, SAMPLED]
    if random.random() < TWICE:
        pieces += [OBSERVED_AGAIN, (4, 6)]
    lengths = [int(random.integers(*piece)) for piece in pieces]
    return episode(random, np.repeat(np.arange(len(pieces)) % 2 == 1, lengths), vocabulary_size)


def episode(random: np.random.Generator, by_policy: np.ndarray, vocabulary_size: int) -> Trajectory:
    """Draws tokens, an advantage, and log-probabilities near those of random parameters."""
    tokens = random.integers(0, vocabulary_size, len(by_policy)).astype(np.int32)
    recorded = np.where(by_policy, random.normal(-np.log(vocabulary_size), 0.1, len(tokens)), 0).astype(np.float32)
    return Trajectory(tokens, by_policy, recorded, float(random.normal()))


class Ours:
    """The update of `lcrag.learning` on packed rows."""

    def __init__(self, config: DecoderConfig, episodes: Sequence[Trajectory], layout: Layout, params=None):
        hidden, unembed = (functools.partial(each, config) for each in (hidden_states, unembed_log_probabilities))
        optimizer = adamw(learning_rate=1e-6, steps=1000)
        self._update = make_update(hidden, unembed, PolicyGradient(), optimizer)
        self._state = initial_state(params or initialise(config, jax.random.key(0)), optimizer)
        self.take(episodes, layout)

    def take(self, episodes: Sequence[Trajectory], layout: Layout) -> None:
        self.batch = pack(episodes, layout)

    def __call__(self) -> tuple[float, float]:
        """Makes one update; returns its loss and the norm of its gradient."""
        self._state, metrics = self._update(self._state, self.batch)
        return float(metrics["loss/policy"]), float(metrics["gradient_norm"])


class PyTorch:
    """The same update in PyTorch: one episode a row, `rows` rows a micro-batch; on a GPU with autocast to bfloat16.

    With `kl`, the coefficient of the k3 estimate, the reference is a copy of the model in bfloat16.
    """

    def __init__(self, model: transformers.PreTrainedModel, episodes: Sequence[Trajectory], rows: int, kl: float = 0.0):
        self._model, self._kl, self._device = model.train(), kl, model.device
        self._reference = copy.deepcopy(model).to(torch.bfloat16).eval() if kl else None
        settings = {"lr": 1e-6, "betas": BETAS, "weight_decay": 0.0, "fused": self._device.type == "cuda"}
        self._optimizer = torch.optim.AdamW(model.parameters(), **settings)
        self.take(episodes, rows)

    def take(self, episodes: Sequence[Trajectory], rows: int) -> None:
        self._count = len(episodes)
        self._parts = [self._padded(episodes[start : start + rows]) for start in range(0, len(episodes), rows)]

    def _padded(self, episodes: Sequence[Trajectory]) -> dict[str, torch.Tensor]:
        longest = max(len(each.tokens) for each in episodes)

        def rows(values: Callable[[Trajectory], np.ndarray]) -> torch.Tensor:
            padded = [np.pad(values(each), (0, longest - len(each.tokens))) for each in episodes]
            return torch.as_tensor(np.stack(padded))

        mask = rows(lambda each: each.by_policy)
        of_tokens = [np.full(each.by_policy.sum(), 1 / each.by_policy.sum(), np.float32) for each in episodes]
        parts = {
            "tokens": rows(lambda each: each.tokens.astype(np.int64)),
            "mask": mask[:, 1:],
            "recorded": rows(lambda each: each.log_probabilities)[mask],
            "shares": torch.as_tensor(np.concatenate(of_tokens)),
            "weights": torch.as_tensor(
                np.concatenate([share * each.advantage for share, each in zip(of_tokens, episodes, strict=True)])
            ).float(),
        }
        return {name: part.to(self._device) for name, part in parts.items()}

    def _scores(self, model: transformers.PreTrainedModel, part: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            states = model.model(input_ids=part["tokens"][:, :-1], use_cache=False).last_hidden_state
            logits = model.lm_head(states[part["mask"]]).float()
        targets = part["tokens"][:, 1:][part["mask"]]
        return logits.gather(1, targets[:, None])[:, 0] - torch.logsumexp(logits, dim=1)

    def __call__(self) -> tuple[float, float]:
        """Makes one update; returns its loss and the norm of its gradient."""
        total = 0.0
        for part in self._parts:
            scores = self._scores(self._model, part)
            ratio = torch.exp(scores - part["recorded"])
            gains = torch.minimum(ratio * part["weights"], ratio.clamp(0.8, 1.2) * part["weights"])
            if self._reference is not None:
                with torch.no_grad():
                    apart = self._scores(self._reference, part)
                apart = apart - scores
                gains = gains - self._kl * (torch.exp(apart) - apart - 1) * part["shares"]
            loss = -gains.sum() / self._count
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), CLIP)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return total, float(norm)


def sizes_of(episode: Trajectory) -> tuple[int, int]:
    """Returns the tokens of an episode, and how many of them were sampled."""
    return len(episode.tokens), int(episode.by_policy.sum())


def needed_flops(config: DecoderConfig, episodes: Sequence[Trajectory]) -> float:
    """Counts the operations that an update needs: no padding, only causal pairs, only the policy's logits."""
    return sum(
        update_flops(config, length, attended=causal_mean(length), unembedded=written)
        for length, written in map(sizes_of, episodes)
    )


def executed_flops(config: DecoderConfig, batch: Batch) -> float:
    """Counts the operations of the compiled update."""
    total, (_, shares, policy) = 0.0, batch.sources.shape
    for part, used in zip(batch.by_row_length(), batch.used, strict=True):
        _, rows, time = part.tokens.shape
        tokens, unembedded = used * rows * time, used * shares * policy
        sizes = {"tokens": tokens, "attended": attended_positions(time), "unembedded": unembedded}
        total += update_flops(config, **sizes)
        # the backward pass computes attention's scores again
        total += 2.0 * config.layers * config.heads * config.head_width * tokens * sizes["attended"]
        if block_size(config.vocabulary_size, policy) < config.vocabulary_size:  # the backward pass computes them again
            total += 2.0 * config.width * config.vocabulary_size * unembedded
    return total


def sides_of(config: DecoderConfig, episodes: Sequence[Trajectory], row_length: int) -> dict[str, Ours | PyTorch]:
    """Returns our update and PyTorch's with all sizes of micro-batches, having checked that they agree."""
    by_length = sorted(episodes, key=lambda each: len(each.tokens))
    orders = {"PyTorch": episodes}
    if len(by_length[0].tokens) < len(by_length[-1].tokens):
        orders["PyTorch, sorted"] = by_length
    forms: dict[str, int | None] = {"lcrag": SHORT if row_length > SHORT else None}
    if row_length > SHORT:
        forms["lcrag, one row length"] = None
    sides: dict[str, Ours | PyTorch] = {
        f"{form}, rows {rows}": Ours(
            config, episodes, Layout(rows=rows, row_lengths=(row_length,), short_row_length=short)
        )
        for form, short in forms.items()
        for rows in OUR_ROWS
    }
    with tempfile.TemporaryDirectory() as folder:
        save_hugging_face(pathlib.Path(folder), config, initialise(config, jax.random.key(0)), dtype="float32")
        for order, each in orders.items():
            for rows in sorted({min(rows, len(episodes)) for rows in TORCH_ROWS}):
                model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
                sides[f"{order}, rows {rows}"] = PyTorch(model, each, rows)
    results = {name: side() for name, side in sides.items()}
    for name, result in results.items():
        np.testing.assert_allclose(result, results["lcrag, rows 2"], rtol=1e-3, atol=1e-4, err_msg=name)
    return sides


def compare(work: str, config: DecoderConfig, episodes: Sequence[Trajectory], row_length: int, repeats: int) -> None:
    """Times all sides in turns and prints the fastest size of micro-batches of each."""
    sides = sides_of(config, episodes, row_length)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in sides.items():
            seconds[name].append(timed(side)[1])
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    fastest: dict[str, str] = {}
    for name in sorted(medians, key=medians.__getitem__):
        fastest.setdefault(name.split(", rows")[0], name)
    machine = measured_machine(make_mesh(devices=jax.devices()[:1]), config.dtype, repeats)
    tokens, written = map(sum, zip(*map(sizes_of, episodes), strict=True))
    needed = needed_flops(config, episodes)
    floor = machine.floor_seconds(needed, 0)
    print(f"\n{work}: {len(episodes)} episodes, {tokens:,} tokens, {written:,} of them sampled")
    print(f"floor: {needed / 1e9:.0f} GFLOP needed, {machine.flops_per_second / 1e9:.0f} GFLOP/s of a matrix product")
    executed = {}
    for form in (each for each in fastest if each.startswith("lcrag")):
        batch = sides[fastest[form]].batch
        executed[form] = executed_flops(config, batch) / needed
        print(f"{form}: executed / needed operations {executed[form]:.2f}, rows {batch.filled:.0%} filled")
    for name in sorted(fastest.values(), key=list(medians).index):
        taken, ratio = medians[name], medians[name] / medians[fastest["lcrag"]]
        share = f"{floor / taken:5.0%} of the floor"
        print(f"{name:26}{taken:8.3f} s {tokens / taken:8,.0f} tokens/s {share} {ratio:6.2f} x lcrag's time")
        report(work, name, seconds[name], tokens, "tokens")
    report(work, "floor", [floor], tokens, "tokens", executed_per_needed=executed["lcrag"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="timed updates of each side")
    parser.add_argument("--only", choices=("ragged", "dense"), help="one of the two batches")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and few episodes: a smoke run")
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    config = TINY if options.tiny else MODEL
    count, dense = (6, 4) if options.tiny else (EPISODES, DENSE)
    random = np.random.default_rng(0)
    words = config.vocabulary_size
    if options.only != "dense":
        episodes = [ragged(random, words) for _ in range(count)]
        compare("update, ragged episodes", config, episodes, LONGEST, options.repeats)
    if options.only != "ragged":
        by_policy = np.arange(DENSE_TIME) >= DENSE_PROMPT
        episodes = [episode(random, by_policy, words) for _ in range(dense)]
        compare(f"update, dense {dense} x {DENSE_TIME}", config, episodes, DENSE_TIME, options.repeats)


if __name__ == "__main__":
    main()
