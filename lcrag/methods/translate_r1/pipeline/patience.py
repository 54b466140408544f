"""Ends a run whose model is the wrong one, before all of it is paid for."""

from lcrag.errors import UserError

TRIED = 64


class Patience:
    """Counts a model's answers until the first one that can be used.

    Args:
      complaint: What is wrong with a model that never gives one.
    """

    def __init__(self, complaint: str):
        self._complaint, self._seen, self._usable = complaint, 0, False

    def saw(self, said: str, *, usable: bool) -> None:
        """Counts an answer.

        Raises:
          UserError: it is the 64th, and none could be used.
        """
        self._usable |= usable
        self._seen += 1
        if not self._usable and self._seen >= TRIED:
            raise UserError(f"{self._complaint} in {TRIED} answers, it says {said[:200]!r}: choose another model")
