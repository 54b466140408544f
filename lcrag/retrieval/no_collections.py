"""Collections of no language, for methods that search nothing."""

from collections.abc import Sequence

from lcrag.errors import UserError
from lcrag.retrieval.passages import Hit


class NoCollections:
    """A `SearchableCollections` in which nothing can be searched."""

    @property
    def languages(self) -> tuple[str, ...]:
        """None."""
        return ()

    def content_hashes(self) -> dict[str, str]:
        """None."""
        return {}

    def search(self, queries: Sequence[str], languages: Sequence[str], k: int) -> list[list[Hit]]:
        """Nothing, for no query.

        Raises:
          UserError: something is searched for.
        """
        if queries:
            raise UserError(
                "something is searched for, but there are no collections: bind some in place of @NoCollections()"
            )
        return []
