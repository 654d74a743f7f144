"""The names of hosts that the user's ssh config knows: what stands behind `Host`, without patterns."""

from __future__ import annotations

import re

from .ssh_config import config_lines, config_words


def configured_hosts() -> list[str]:
    """Return the names in the ssh config and all that it includes, in their order, each once; nothing is connected.

    Patterns (`*`, `?`, `!`) are no names, and neither is what ssh itself would refuse as a host. A file that cannot be
    read, or is not there, has none.
    """
    return list(
        dict.fromkeys(
            word
            for keyword, rest in config_lines()
            if keyword == "host"
            for word in config_words(rest)
            if not re.search(r"[*?!\s]", word) and not word.startswith("-")
        )
    )
