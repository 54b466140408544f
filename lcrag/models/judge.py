"""A model that judges: a second checkpoint, or one behind an endpoint."""

from collections.abc import Sequence

from lcrag.episodes.completion import Completer
from lcrag.errors import UserError
from lcrag.sampling.generation import Generation


class CompletionJudge:
    """Says something to each of many prompts, all in one batch.

    The first attempt is greedy, so that a judgement can be repeated; a later one samples, since a greedy model would
    say the same again.

    Args:
      model: Completes prompts: a second checkpoint (`SamplerCompleter`) or an endpoint (`EndpointCompleter`).
      temperature: Of the attempts after the first.
      max_tokens: Longest answer.
      seed: Of sampling.

    Raises:
      UserError: a temperature that is not above 0.
    """

    def __init__(self, model: Completer, temperature: float = 0.7, max_tokens: int = 512, seed: int = 0):
        if temperature <= 0:
            raise UserError(f"CompletionJudge.temperature is {temperature}: a model asked again needs one above 0")
        self._model, self._temperature, self._max_tokens, self._seed = model, temperature, max_tokens, seed

    def __call__(self, prompts: Sequence[str], attempt: int = 0) -> list[str]:
        """What the model says, in order; one that fails raises, and never counts as silent.

        Args:
          prompts: What to judge.
          attempt: How often these were asked before.
        """
        if not prompts:
            return []
        asked = [(prompt, self._generation(place, attempt)) for place, prompt in enumerate(prompts)]
        return [completion.text for completion in self._model(asked)]

    def _generation(self, place: int, attempt: int) -> Generation:
        return Generation(
            stop=(),
            max_tokens=self._max_tokens,
            temperature=self._temperature if attempt else 0.0,
            seed=self._seed + attempt,
            episode=place,
        )
