"""Make `albedo_provisioner/browse/linguist.json` from GitHub Linguist's data, for a newer version of it.

    python tools/linguist.py DIRECTORY VERSION

DIRECTORY holds Linguist's languages.yml, heuristics.yml and popular.yml; VERSION is noted in the result. Needs PyYAML.

Linguist tells languages that share an extension apart by what is in the files, which we do not read. So each extension
gets one language here: the one that Linguist's heuristics fall back to, else the best known of those that claim it, as
far as that can be seen from the data: popular, or with an editor mode of its own name, and with it as first extension.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

RESULT = Path(__file__).parent.parent / "albedo_provisioner" / "browse" / "linguist.json"

NOTICE = (
    "From GitHub Linguist (github-linguist/linguist on GitHub). Copyright (c) 2017 GitHub, Inc. Permission is hereby "
    "granted, free of charge, to any person obtaining a copy of this software and associated documentation files (the "
    '"Software"), to deal in the Software without restriction, including without limitation the rights to use, copy, '
    "modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom "
    "the Software is furnished to do so, subject to the following conditions: The above copyright notice and this "
    "permission notice shall be included in all copies or substantial portions of the Software. THE SOFTWARE IS "
    'PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES '
    "OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR "
    "COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR "
    "OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE."
)


def main() -> None:
    """Read, decide, write."""
    directory = Path(sys.argv[1])
    languages, heuristics, popular = (
        yaml.safe_load((directory / f"{name}.yml").read_text()) for name in ("languages", "heuristics", "popular")
    )
    result = {
        "notice": NOTICE,
        "version": sys.argv[2],
        "types": {name: language["type"] for name, language in languages.items()},
        "extensions": _extensions(languages, _defaults(heuristics), set(popular)),
        "filenames": {file: name for name, language in languages.items() for file in language.get("filenames", ())},
    }
    RESULT.write_text(json.dumps(result, indent=0, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


def _defaults(heuristics: dict[str, Any]) -> dict[str, str]:
    """Return what an extension stands for when no heuristic fits: a last rule without a condition."""
    found = {}
    for each in heuristics["disambiguations"]:
        last = each["rules"][-1]
        language = last["language"]
        if set(last) == {"language"}:
            found |= {
                extension: language if isinstance(language, str) else language[0] for extension in each["extensions"]
            }
    return found


def _extensions(languages: dict[str, Any], defaults: dict[str, str], popular: set[str]) -> dict[str, str]:
    claims: dict[str, list[str]] = {}
    for name, language in languages.items():
        for extension in language.get("extensions", ()):
            claims.setdefault(extension.lower(), []).append(name)

    def renown(name: str, extension: str) -> tuple[bool, ...]:
        language = languages[name]
        first = language["extensions"][0] == extension
        liked = name in popular and language["type"] in ("programming", "markup")
        mode = language["ace_mode"]
        own = mode == re.sub(r"\W", "", name.lower())
        shown = "codemirror_mode" in language
        return first and liked, first and own, liked, first and shown, own, first, mode != "text", shown

    # `max` keeps the first of equals, and the languages are in the order of their names.
    return {
        extension: defaults.get(extension) or max(names, key=lambda name: renown(name, extension))
        for extension, names in claims.items()
    }


if __name__ == "__main__":
    main()
