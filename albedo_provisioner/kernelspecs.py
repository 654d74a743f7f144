"""Kernelspecs that this package writes: one folder on one host, as an entry of Jupyter's kernel picker.

A kernelspec is a directory with a `kernel.json` (jupyter_client's documentation, "Kernel specs"). Ours are those whose
`metadata.kernel_provisioner.provisioner_name` is `albedo-provisioner`; no other is ever changed or removed.

jupyter_core says where they lie. jupyter_client's KernelSpecManager would too, but importing it takes longer than all
that is done here, and it replaces a kernelspec by deleting the old one first.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_data_dir, jupyter_path

from .errors import AlbedoError, ConfigError
from .location import Location

PROVISIONER_NAME = "albedo-provisioner"

_NAME = re.compile(r"[a-z0-9._-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESOURCES = Path(__file__).parent / "resources"
_LOGOS = ("logo-64x64.png", "logo-svg.svg")


@dataclass(frozen=True)
class Settings:
    """What a kernelspec says about its kernel; the `config` of its provisioner.

    Attributes:
        location: where the kernel runs.
        python: interpreter on the host: a path, or a name looked up there. None: the host's own `python3`.
        env: variables to set for the kernel.
        grace: seconds for which the kernel stays when nobody is linked to it. None: the provisioner's default.
        provide: whether a host whose interpreter has no ipykernel is given one.
        kernel: a kernelspec of the host, its name or its directory's path. None: the Python kernel of `python`.
        join: the id of a kernel that runs there already, to open it instead of starting one; None to start one.

    Raises:
        ConfigError: (on construction) a setting is malformed.
    """

    location: Location
    python: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    grace: float | None = None
    provide: bool = True
    kernel: str | None = None
    join: str | None = None

    def __post_init__(self) -> None:
        if self.python is not None and (
            not self.python or self.python.startswith("-") or not self.python.isprintable()
        ):
            raise ConfigError(f"{self.python!r} cannot be the path of a Python interpreter.")
        for name, value in self.env.items():
            if not _VARIABLE.fullmatch(name):
                raise ConfigError(
                    f"{name!r} is not the name of an environment variable (letters, digits and _, no digit first)."
                )
            if "\0" in value or not _is_encodable(value):
                raise ConfigError(f"The value of the environment variable {name} is not text: {value!r}.")
        if self.grace is not None and not 0 <= self.grace < float("inf"):
            raise ConfigError(f"The grace is a number of seconds, zero or more, not {self.grace:g}.")

    def config(self) -> dict[str, Any]:
        """As the kernelspec holds it: plain JSON, only what was given."""
        config: dict[str, Any] = {"location": str(self.location)}
        if self.python is not None:
            config["python"] = self.python
        if self.kernel is not None:
            config["kernel"] = self.kernel
        if self.join is not None:
            config["join"] = self.join
        if self.env:
            config["env"] = dict(self.env)
        if self.grace is not None:
            config["grace"] = int(self.grace) if self.grace == int(self.grace) else self.grace
        if not self.provide:
            config["provide"] = False
        return config


def _is_encodable(text: str) -> bool:
    # Bytes of the command line that are no text arrive as lone surrogates, which no JSON file can hold.
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True)
class Appearance:
    """What clients are told of a kernel; the defaults are those of the Python kernel.

    Attributes:
        language: its language.
        interrupt_mode: "signal", or "message" for a kernel that wants to be asked.
        debugger: whether it can debug.
        logos: its logos by file name (`logo-64x64.png`, `logo-svg.svg`); empty for this package's own.
    """

    language: str = "python"
    interrupt_mode: str = "signal"
    debugger: bool = True
    logos: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Kernelspec:
    """A kernelspec that is there.

    Attributes:
        name: what `kernel_name=` takes.
        directory: where its kernel.json lies.
        display_name: what the kernel picker shows.
        config: its provisioner's settings as written: at least `location` in a sound one.
    """

    name: str
    directory: Path
    display_name: str
    config: Mapping[str, Any]

    @property
    def location(self) -> str:
        """The location as written; empty in a kernelspec that somebody broke."""
        return str(self.config.get("location", ""))

    @property
    def where(self) -> str:
        """ "user", "environment" (the running interpreter's prefix), or the directory above it."""
        known = {user_directory(): "user", environment_directory(): "environment"}
        return known.get(self.directory.parent, str(self.directory.parent))


def user_directory() -> Path:
    """Where the user's own kernelspecs lie."""
    return Path(jupyter_data_dir()) / "kernels"


def environment_directory() -> Path:
    """Where the kernelspecs of the running Python environment lie."""
    return Path(sys.prefix) / "share" / "jupyter" / "kernels"


def find_ours() -> list[Kernelspec]:
    """All kernelspecs of this package that Jupyter would look at, in its order of preference, one entry a directory."""
    return [
        Kernelspec(name, directory, str(document.get("display_name", name)), config)
        for name, directory, document in _all()
        if (config := _our_config(document)) is not None
    ]


def _all() -> Iterator[tuple[str, Path, Mapping[str, Any]]]:
    for parent in dict.fromkeys(Path(path) for path in jupyter_path("kernels")):
        try:
            directories = sorted(parent.iterdir())
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # Jupyter passes over these as well
        for directory in directories:
            if (directory / "kernel.json").is_file():
                yield directory.name.lower(), directory, _read(directory)


def _read(directory: Path) -> Mapping[str, Any]:
    try:
        document = json.loads((directory / "kernel.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # somebody else's broken file: its name is taken, and it is not ours
    return document if isinstance(document, dict) else {}


def _our_config(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    metadata = document.get("metadata")
    provisioner = metadata.get("kernel_provisioner") if isinstance(metadata, dict) else None
    if not isinstance(provisioner, dict) or provisioner.get("provisioner_name") != PROVISIONER_NAME:
        return None
    config = provisioner.get("config")
    return config if isinstance(config, dict) else {}


# ------------------------------------------------------------------------------------------------------- writing


def default_name(location: Location, kernel: str | None = None) -> str:
    """A kernelspec's name for a location: `gpu:~/my proj` gives `albedo-gpu-my-proj`, with the kernel `ir` of the host
    `albedo-gpu-my-proj-ir`.
    """
    folder = location.path.rpartition("/")[2]
    parts = [location.hostname or "local"] + ([] if folder in ("", "~", "..") else [folder])
    slugs = [_slug(part) for part in parts]
    if "" in slugs:
        # Nothing of the name is left in Latin letters; it must still not be every such folder's name.
        slugs = [*filter(None, slugs), hashlib.sha256(str(location).encode()).hexdigest()[:8]]
    if kernel is not None:
        slugs.append(_slug(kernel.rstrip("/").rpartition("/")[2]) or hashlib.sha256(kernel.encode()).hexdigest()[:8])
    return "-".join(["albedo", *slugs])


def _slug(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9._]+", "-", plain).strip("-.")[:64]


def default_display_name(location: Location, home: str | None = None, label: str = "Python 3") -> str:
    """What the kernel picker shows: "Python 3 · gpu:~/proj".

    Args:
        location: where the kernel runs.
        home: the home directory there, where it is known, to be shown as `~`.
        label: which kernel it is.
    """
    path = location.path
    if home is not None and home != "/" and (path == home or path.startswith(home + "/")):
        location = Location(location.host, "~" + path[len(home) :])
    return f"{label} · {location}"


def add(
    settings: Settings,
    *,
    name: str | None = None,
    display_name: str | None = None,
    replace: bool = False,
    environment: bool = False,
    appearance: Appearance | None = None,
) -> Kernelspec:
    """Write a kernelspec.

    Adding a location again, with the same kernel, updates its kernelspec. A name that was not asked for is made unique;
    a name that was asked for, and is taken, is refused.

    Args:
        settings: the kernel's.
        name: None for one made from the location.
        display_name: None for "Python 3 · <location>".
        replace: take a kernelspec of ours that has this name but another location.
        environment: write it into the running Python environment, not into the user's own directory.
        appearance: what clients are told of the kernel; None for the Python kernel.

    Returns:
        The kernelspec as it is there now.

    Raises:
        ConfigError: the name is no kernelspec name, or is taken.
        AlbedoError: it could not be written.
    """
    appearance = appearance or Appearance()
    name = _choose_name(settings, name, replace)
    display_name = display_name or default_display_name(settings.location)
    if not display_name.isprintable():
        raise ConfigError(f"The display name {display_name!r} holds control characters.")
    directory = (environment_directory() if environment else user_directory()) / name
    document = {
        # Read only by clients that know nothing of provisioners; see `run-kernel` in cli.py.
        "argv": [sys.executable, "-m", __package__, "run-kernel", "--kernelspec", name, "-f", "{connection_file}"],
        "display_name": display_name,
        "language": appearance.language,
        "interrupt_mode": appearance.interrupt_mode,
        "metadata": {
            "debugger": appearance.debugger,
            "kernel_provisioner": {"provisioner_name": PROVISIONER_NAME, "config": settings.config()},
        },
    }
    try:
        _write(directory, json.dumps(document, indent=1, ensure_ascii=False) + "\n", appearance.logos)
    except OSError as error:
        hint = " Without --sys-prefix it goes into your own directory." if environment else ""
        raise AlbedoError(f"The kernelspec could not be written to {directory}: {error.strerror}.{hint}") from error
    return Kernelspec(name, directory, display_name, settings.config())


def check_name(name: str) -> None:
    """See whether a kernelspec could have this name.

    Raises:
        ConfigError: it could not.
    """
    if not _NAME.fullmatch(name.lower()):
        raise ConfigError(f"{name!r} is not a kernelspec name: only letters, digits, '.', '_' and '-' may be in it.")


def _choose_name(settings: Settings, name: str | None, replace: bool) -> str:
    # What it is for by name; None where it is not ours. Jupyter offers python3 also where no directory has that name.
    taken: dict[str, str | None] = {"python3": None}
    for other, _, document in _all():
        config = _our_config(document)
        taken.setdefault(other, None if config is None else _purpose(config))
    purpose = _purpose(settings.config())
    if name is not None:
        check_name(name)
        name = name.lower()  # Jupyter looks names up in lower case
        if name not in taken or taken[name] == purpose:
            return name
        if taken[name] is None:
            raise ConfigError(
                f"There is a kernelspec {name} that was not made by jupyter albedo; choose another --name."
            )
        if not replace:
            raise ConfigError(
                f"The kernelspec {name} is for {taken[name]}; replace it with --replace, or choose another --name."
            )
        return name
    base = f"albedo-join-{settings.join[:8]}" if settings.join else default_name(settings.location, settings.kernel)
    for number in range(1, len(taken) + 2):
        candidate = base if number == 1 else f"{base}-{number}"
        if candidate not in taken or taken[candidate] == purpose:
            return candidate
        if replace and taken[candidate] is not None:
            return candidate
    raise AssertionError("more candidates than names that are taken")


def _purpose(config: Mapping[str, Any]) -> str:
    location, kernel, running = (config.get(name) for name in ("location", "kernel", "join"))
    if running:
        return f"the running kernel {running}"
    return f"{location} (kernel {kernel})" if kernel else str(location or "")


def _put_logos(directory: Path, logos: Mapping[str, bytes]) -> None:
    for name in _LOGOS:
        if name in logos:
            (directory / name).write_bytes(logos[name])
        elif not logos and (_RESOURCES / name).exists():
            shutil.copyfile(_RESOURCES / name, directory / name)
        else:
            (directory / name).unlink(missing_ok=True)


def _write(directory: Path, text: str, logos: Mapping[str, bytes]) -> None:
    """Put a kernelspec into place whole: who looks at any moment sees the old one, the new one, or none."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    if (directory / "kernel.json").exists():
        _put_logos(directory, logos)
        descriptor, temporary = tempfile.mkstemp(dir=directory, prefix="kernel.json.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(temporary, 0o644)
            os.replace(temporary, directory / "kernel.json")
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        return
    # Beside the directory of kernelspecs, where nobody takes a half-written one for a kernelspec.
    staging = Path(tempfile.mkdtemp(dir=directory.parent.parent, prefix=".albedo-kernelspec-"))
    try:
        (staging / "kernel.json").write_text(text, encoding="utf-8")
        _put_logos(staging, logos)
        staging.chmod(0o755)
        staging.rename(directory)  # fails where somebody has put something there meanwhile
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def remove(name: str) -> Kernelspec:
    """Remove a kernelspec of ours: the one that Jupyter would use, where several directories hold the name.

    Returns:
        What was removed.

    Raises:
        ConfigError: there is none of this name, or it is not ours.
        AlbedoError: it could not be removed.
    """
    ours = [kernelspec for kernelspec in find_ours() if kernelspec.name == name.lower()]
    if not ours:
        if any(other == name.lower() for other, _, _ in _all()):
            raise ConfigError(f"The kernelspec {name} was not made by jupyter albedo; it is left alone.")
        raise ConfigError(f"There is no kernelspec {name!r}; `jupyter albedo list` shows those there are.")
    directory = ours[0].directory
    try:
        if directory.is_symlink():
            directory.unlink()
        else:
            # kernel.json first: from then on nobody sees a kernelspec there, however long the rest takes.
            (directory / "kernel.json").unlink()
            shutil.rmtree(directory)
    except OSError as error:
        raise AlbedoError(f"The kernelspec in {directory} could not be removed: {error.strerror}.") from error
    return ours[0]
