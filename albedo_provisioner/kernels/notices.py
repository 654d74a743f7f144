"""Lines for users that hold for as long as what they tell of: for the cell that runs, else for the next one."""

from __future__ import annotations

from ..errors import AlbedoError, ConfigError, SignInError
from .front import Front


class Notice:
    """A line that the next cell is told, unless what it tells of is over by then."""

    def __init__(self) -> None:
        self._line = ""

    def put(self, front: Front, line: str) -> None:
        """Have this line told instead of the one before; an empty one takes that back."""
        if line != self._line:
            told = (front.greeting or "").split("\n")
            kept = [each for each in told if each not in ("", self._line)]
            self._line, front.greeting = line, "\n".join([*kept, line] if line else kept) or None


class Refusal:
    """What a person has to mend before a host gives us the kernel again, told to one cell for each break."""

    def __init__(self) -> None:
        self._notice = Notice()
        self._words = ""  # of the newest refusal
        self._told = ""

    def came(self, host: str, front: Front, error: AlbedoError) -> None:
        """Note that an attempt to reach the kernel was refused.

        Args:
            host: the host as the user spells it.
            front: what tells it.
            error: the refusal.
        """
        # What may pass by itself is told when it has come twice.
        lasts = isinstance(error, (SignInError, ConfigError)) or str(error) == self._words
        self._words = str(error)
        if not lasts or self._told == self._words:
            return
        self._told = self._words
        line = (
            f"[albedo] Nothing comes from {host} until a person has seen to this: {error} What runs there runs on, and "
            "this cell goes on when that is done."
        )
        if running := front.running:
            front.tell(running[0], line + "\n")
        else:
            self._notice.put(front, line)

    def over(self, front: Front) -> None:
        """Note that there is a connection again."""
        self._words = self._told = ""
        self._notice.put(front, "")
