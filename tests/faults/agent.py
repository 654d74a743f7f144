"""The agent that is killed: opens or resumes a session, runs one cell, and says what it does, line by line as JSON.

    agent.py LOCATION PYTHON SESSION-ID CELL-ID CODE

An empty session id opens one. What became of the session's earlier cells is told first, should there be any.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from albedo_provisioner import Sessions
from albedo_provisioner.errors import AlbedoError


def say(**content: Any) -> None:
    print(json.dumps(content), flush=True)


def main() -> None:
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("albedo_provisioner").setLevel(logging.INFO)
    location, python, session_id, cell_id, code = sys.argv[1:]
    sessions = Sessions()
    session = sessions.resume(session_id) if session_id else sessions.open(location, "agent", python=python)
    say(session=session.id)
    say(sending=cell_id)
    while True:
        try:
            result = session.execute(code, cell_id=cell_id)
        except AlbedoError as error:  # a cell of the past cannot be asked for while the host is away
            say(refused=str(error))
        else:
            break
    say(result=result.to_dict())
    sys.stdin.read()  # until it is killed, or told to go
    sessions.leave()


main()
