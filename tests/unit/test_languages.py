"""Files' languages by their names."""

from __future__ import annotations

import pytest

from albedo_provisioner.browse.languages import language_of, type_of


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("a.py", "Python"),
        ("A.PY", "Python"),
        ("a.tar.py", "Python"),
        ("Makefile", "Makefile"),
        ("CMakeLists.txt", "CMake"),
        ("x.ipynb", "Jupyter Notebook"),
        ("a.blade.php", "Blade"),
        (".bashrc", "Shell"),
        # Those that several languages claim.
        ("a.h", "C"),
        ("a.rs", "Rust"),
        ("a.r", "R"),
        ("a.pl", "Perl"),
        ("a.fs", "F#"),
        ("a.m", "Objective-C"),
        ("a.ts", "TypeScript"),
        ("a.md", "Markdown"),
    ],
)
def test_a_name_tells_a_language(name: str, language: str) -> None:
    assert language_of(name) == language


@pytest.mark.parametrize("name", ["", ".", "LICENCE", "a.", ".py", "a.nothing-known", "py", "\udcff", "a b"])
def test_some_names_tell_nothing(name: str) -> None:
    assert language_of(name) is None


def test_every_language_has_a_type() -> None:
    assert type_of("Python") == "programming"
    assert type_of("Jupyter Notebook") == "markup"
    assert (type_of("JSON"), type_of("Markdown")) == ("data", "prose")
