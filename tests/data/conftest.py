"""What tests of data files share."""

import gin
import pytest

from lcrag.data.rows import BadRows
from lcrag.errors import UserError


@pytest.fixture
def one_bad_row(capsys):
    """`check(read, *parts)`: the bad row gives an error with all parts; returns the other rows if it is skipped.

    `read` is called with `BadRows`; functions that gin configures take them from there.
    """

    def check(read, *parts):
        with pytest.raises(UserError) as caught:
            read(BadRows())
        message = str(caught.value).partition("\n")[0]
        assert [part for part in (*parts, "--skip_bad_rows") if part not in message] == [], message
        gin.bind_parameter("BadRows.skip", True)
        skipped = BadRows()
        rows = read(skipped)
        assert len(skipped.problems) + capsys.readouterr().err.count("1 bad row was left out") == 1
        return rows

    return check
