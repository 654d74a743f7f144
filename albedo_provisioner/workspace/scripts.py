"""Scripts that are written without spaces between words, or with endings joined on, for the index of memory.

SQLite's tokenizer splits at spaces and punctuation alone, so that a sentence in Chinese would be one word to it. Here
each character of such a script is made a word of its own, and what is searched for a phrase of them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

# Thai and Lao, Myanmar, Khmer, Japanese (with the iteration marks), Han, Korean, wide and narrow forms, rarer Han.
# The blocks are Unicode's: https://www.unicode.org/Public/UNIDATA/Blocks.txt
_CHARACTERS = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    r"\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)

# Ends a word for the tokenizer, and takes no room where it is seen.
_SEAM = "\u200b"

_SEAMS = re.compile(rf"(?<=[{_CHARACTERS}])(?=\w)|(?<=\w)(?=[{_CHARACTERS}])")

_RUN = re.compile(rf"[{_CHARACTERS}]{{2,}}")


def with_seams(text: str) -> str:
    """Return a text, composed, in which each character of these scripts is a word to SQLite's tokenizer."""
    return _SEAMS.sub(_SEAM, composed(text))


def composed(text: str) -> str:
    """Return a text whose accents and syllables are single characters where there are such (Unicode's NFC); files of
    macOS, and what is copied from there, often have them in parts.
    """
    return unicodedata.normalize("NFC", text)


def without_seams(text: str) -> str:
    """Return the text that `with_seams` was given, but for characters without width that it had itself."""
    return text.replace(_SEAM, "")


def pairs(word: str) -> Iterator[str]:
    """Yield a word's parts that may be words: two neighbours each in these scripts, and the rest as it is."""
    end = 0
    for run in _RUN.finditer(word):
        yield from filter(None, (word[end : run.start()],))
        yield from (run[0][start : start + 2] for start in range(len(run[0]) - 1))
        end = run.end()
    yield from filter(None, (word[end:],))
