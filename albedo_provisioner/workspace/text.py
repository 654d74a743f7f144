"""Texts within a budget of characters."""

from __future__ import annotations

from collections.abc import Sequence


def must_be_text(value: object) -> str:
    """Return a value that is a text.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, str):
        raise TypeError(f"a text is needed, and not a value of type {type(value).__name__}")
    return value


def shortened(text: str, limit: int) -> str:
    """Return a text in at most so many characters: its beginning and its end, and what is missing said between them."""
    if len(text) <= limit:
        return text
    gap = f"\n[… {len(text) - limit:,} characters and more left out …]\n"
    room = limit - len(gap)
    if room <= 0:
        return text[: max(limit, 0)]
    head = room // 2
    return text[:head] + gap + text[len(text) - (room - head) :]


def shares(sizes: Sequence[int], budget: int) -> list[int]:
    """Share a budget among texts of these sizes: the first may have half of it, the others share what is left.

    What one does not need goes to the others.
    """
    if sum(sizes) <= budget or not sizes:
        return list(sizes)
    rest = sizes[1:]
    first = min(sizes[0], max(budget // 2 if rest else budget, budget - sum(rest)))
    return [first, *_equally(rest, budget - first)]


def _equally(sizes: Sequence[int], budget: int) -> list[int]:
    given = [0] * len(sizes)
    for turn, number in enumerate(sorted(range(len(sizes)), key=lambda each: sizes[each])):
        given[number] = min(sizes[number], budget // (len(sizes) - turn))
        budget -= given[number]
    return given
