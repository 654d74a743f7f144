"""Random cells: what a notebook may contain, each over in a second or two."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """A cell.

    Attributes:
        kind: what it does, for the report.
        code: the code.
        status: what its reply must say.
        asks: whether it asks for input, so that it needs a client to go on.
    """

    kind: str
    code: str
    status: str = "ok"
    asks: bool = False


def prints(rng: random.Random) -> Cell:
    count, pause = rng.choice([(50, 0.005), (400, 0.001), (2000, 0), (20, 0.03)])
    stream = rng.choice(["sys.stdout", "sys.stderr"])
    flush = rng.random() < 0.7
    pause_line = f"\n    time.sleep({pause})" if pause else ""
    return Cell(
        "prints",
        f"import sys, time\nfor i in range({count}):\n    print(i, file={stream}, flush={flush}){pause_line}\n{count}",
    )


def displays(rng: random.Random) -> Cell:
    return Cell(
        "displays",
        "from IPython.display import HTML, clear_output, display\n"
        f"handle = display(HTML('<b>0</b>'), display_id=True)\nfor i in range({rng.choice([5, 60])}):\n"
        "    handle.update(HTML(f'<b>{i}</b>'))\n    display({'text/plain': str(i), 'x/y': 'z' * 500}, raw=True)\n"
        "    if i % 10 == 9: clear_output(wait=True)\n",
    )


def errors(rng: random.Random) -> Cell:
    return Cell(
        "errors",
        f"def deep(n):\n    print(n)\n    return deep(n - 1) if n else {rng.choice(['1 / 0', '[][1]', 'undefined'])}\n"
        f"deep({rng.randrange(1, 40)})",
        "error",
    )


def big_outputs(rng: random.Random) -> Cell:
    size = rng.choice([200_000, 1_000_000, 4_000_000])
    how = rng.choice(
        ["print('x' * n, flush=True)", "display({'text/plain': 'y' * n}, raw=True)", "print(os.urandom(n // 2).hex())"]
    )
    return Cell("big outputs", f"import os\nfrom IPython.display import display\nn = {size}\n{how}\nn")


def nested_output(rng: random.Random) -> Cell:
    return Cell(
        "nested output",
        "import os, subprocess, threading\nfrom IPython.display import display\n"
        "try:\n    from ipywidgets import HBox, Output\nexcept ImportError:\n    import contextlib\n"
        "    Output, HBox = (lambda: contextlib.nullcontext()), (lambda children: 0)\n"
        "outer, inner = Output(), Output()\ndisplay(HBox([]))\n"
        "with outer:\n    print('outer')\n    with inner:\n        display('inner')\n"
        "        print('inner', flush=True)\n"
        f"def work(n):\n    for i in range({rng.choice([3, 30])}): print(n, i)\n"
        "threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]\n"
        "for each in threads: each.start()\nfor each in threads: each.join()\n"
        "print(subprocess.run(['echo', 'child'], capture_output=True, text=True).stdout)\n",
    )


def input_requests(rng: random.Random) -> Cell:
    return Cell(
        "input",
        f"for i in range({rng.randrange(1, 4)}):\n    print(input(f'prompt {{i}}: '))\n'answered'",
        asks=True,
    )


def sleeping(rng: random.Random) -> Cell:
    return Cell("sleeping", f"import time\ntime.sleep({rng.uniform(0.1, 1.2):.2f})\nprint('woken')")


def busy_loop(rng: random.Random) -> Cell:
    return Cell("busy loop", f"print('busy', flush=True)\nsum(range({rng.choice([5, 20, 40])} * 10**6))")


def silent(rng: random.Random) -> Cell:
    return Cell("silent", f"x = {rng.randrange(1000)}")


KINDS: list[Callable[[random.Random], Cell]] = [
    *(prints, prints, displays, errors, big_outputs, nested_output, input_requests, sleeping, busy_loop, silent)
]


def choose(rng: random.Random, asking: bool = True) -> Cell:
    """Return a random cell; `asking` says whether it may ask for input."""
    while True:
        cell = rng.choice(KINDS)(rng)
        if asking or not cell.asks:
            return cell
