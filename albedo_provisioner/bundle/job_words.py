"""What became of a job, in words; used in the kernel and on the client's side."""

from __future__ import annotations

import signal

TYPE_CHECKING = False  # not from typing: see processes.py
if TYPE_CHECKING:
    from typing import Any


def how_it_ended(summary: dict[str, Any]) -> str:
    """Return how a job ended, in words that follow its name; the summary is `JobProcess.summary`'s."""
    code = summary["exit_code"]
    if code is None:
        return "was lost"
    if code < 0:
        try:
            how = f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            how = f"was ended by signal {-code}"
    else:
        how = f"ended with exit code {code}"
    return f"ran out of its time and {how}" if summary["timed_out"] else how


def sentence(summary: dict[str, Any]) -> str:
    """Return a sentence about a job that has ended: "The job `make -j8` ended with exit code 2 after 40 s." """
    command = summary["command"].encode("utf-8", "backslashreplace").decode()  # a file's name need not be text
    text = f"The job `{command}` {how_it_ended(summary)}"
    if summary["ended"] is not None:
        text += f" after {duration(summary['ended'] - summary['started'])}"
    return f"{text}{'; ' + summary['problem'] if summary.get('problem') else ''}."


def duration(seconds: float) -> str:
    """Return a time span for people: "0.3 s", "40 s", "12 min", "3.5 h"."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
