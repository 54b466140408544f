"""The one exception for what a person got wrong: it becomes one clear line, never a traceback."""


class UserError(Exception):
    """A user's mistake: the message says what is wrong, where, and how to mend it.

    `lcrag` prints it as `lcrag: error: <message>` and exits with status 2.
    """
