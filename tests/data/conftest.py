"""What tests of data files share."""

import pytest

from lcrag.data.rows import BadRows
from lcrag.errors import UserError


@pytest.fixture
def one_bad_row():
    """`check(read, *parts)`: the bad row gives a one-line error with all parts; returns the rows if it is skipped."""

    def check(read, *parts):
        with pytest.raises(UserError) as caught:
            read(BadRows())
        message = str(caught.value)
        assert [part for part in (*parts, "--skip_bad_rows") if part not in message] == [], message
        assert "\n" not in message
        skipped = BadRows(skip=True)
        rows = read(skipped)
        assert len(skipped.problems) == 1
        return rows

    return check
