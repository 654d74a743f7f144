"""The fault campaign's short form: a dozen rounds of `python -m tests.faults`, which has the long one.

A round that fails prints the command that replays it.
"""

from __future__ import annotations

import secrets

import pytest
from conftest import unavailable
from faults.run import run
from sshd import NoSshdError

FIXED = "short"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("seed", "rounds"), [(FIXED, 10), (None, 4)], ids=["fixed", "random"])
async def test_random_cells_under_random_faults_arrive_byte_for_byte(seed: str | None, rounds: int) -> None:
    """L1 to L8."""
    try:
        assert await run(rounds, seed or secrets.token_hex(4)) == []
    except NoSshdError as error:
        unavailable(str(error))
