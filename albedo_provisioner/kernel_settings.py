"""What a kernelspec may say about its kernel (`metadata.kernel_provisioner.config`), and what request comes of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import traitlets
from jupyter_client.provisioning.provisioner_base import KernelProvisionerBase

from .errors import ConfigError
from .kernels.request import KernelRequest
from .location import Location

_MACHINE_BOUND = frozenset(
    (
        *("PATH", "HOME", "PWD", "OLDPWD", "USER", "LOGNAME", "SHELL", "TMPDIR", "TEMP", "TMP", "DISPLAY", "HOSTNAME"),
        *("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME", "PYTHONEXECUTABLE"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH"),
        *("JPY_PARENT_PID", "JPY_INTERRUPT_EVENT", "SSH_AUTH_SOCK", "SSH_AGENT_PID", "XDG_RUNTIME_DIR"),
    )
)
"""Variables that mean something on this machine only, and never go to a host even when a caller sets them."""


class KernelSettings(KernelProvisionerBase):
    """The settings of a kernel, each a key of the provisioner's config in a kernelspec; also settable for all kernels
    in Jupyter's own configuration, as those of `AlbedoProvisioner`.
    """

    location = traitlets.Unicode(
        help="Where the kernel runs: `[user@]host:/abs/path`, `host:~/path`, or a path on this machine. Required.",
    ).tag(config=True)
    python = traitlets.Unicode(
        None,
        allow_none=True,
        help="Interpreter on the host, a path (`~/` allowed) or a name. Default: the login shell's `python3`.",
    ).tag(config=True)
    kernel = traitlets.Unicode(
        None,
        allow_none=True,
        help="A kernelspec of the host, looked up there at every start: its name, or the path of its directory. "
        "Default: the Python kernel of `python`.",
    ).tag(config=True)
    env = traitlets.Dict(
        value_trait=traitlets.Unicode(),
        key_trait=traitlets.Unicode(),
        help="Variables to add to the host's login environment; `${NAME}` stands for a variable of that environment.",
    ).tag(config=True)
    grace = traitlets.Float(
        None,
        allow_none=True,
        help="Seconds an idle kernel that nobody is linked to is kept on its host. Default: 86400, a day.",
    ).tag(config=True)
    hold = traitlets.Int(
        None,
        allow_none=True,
        help="Bytes of output that the host holds while this machine is away. Default: 67108864, 64 MiB.",
    ).tag(config=True)
    journal_cells = traitlets.Int(
        None,
        min=1,
        allow_none=True,
        help="How many of the newest cells the host keeps whole, for `jupyter albedo recover`. Default: 200.",
    ).tag(config=True)
    journal_bytes = traitlets.Int(
        None,
        min=1,
        allow_none=True,
        help="Bytes that the kept cells may have altogether. Default: 33554432, 32 MiB.",
    ).tag(config=True)
    join = traitlets.Unicode(
        None,
        allow_none=True,
        help="The id of a kernel at `location` that runs already, to open it instead of starting one. It is another's: "
        "it stays when the notebook is closed, and is not restarted from here.",
    ).tag(config=True)
    provide = traitlets.Bool(
        True,
        help="Whether a host whose interpreter has no ipykernel is given one, behind the interpreter's own packages.",
    ).tag(config=True)
    reattach = traitlets.Bool(
        True,
        help="Whether a notebook whose server was killed finds its kernel again, variables and all, at the next start.",
    ).tag(config=True)
    on_server_exit = traitlets.Enum(
        ["end", "keep"],
        "end",
        help="What becomes of the kernel when the Jupyter Server is stopped: it ends, or it is kept to be found again.",
    ).tag(config=True)
    endpoints = traitlets.Enum(
        ["auto", "ipc", "tcp"],
        "auto",
        help="How local clients connect: private ipc sockets, or encrypted tcp on loopback. Default: ipc if possible.",
    ).tag(config=True)

    def __init__(self, **kwargs: Any) -> None:
        unknown = sorted(
            name for name in kwargs if not self.has_trait(name) and name not in ("parent", "config", "log")
        )
        if unknown:
            keys = ", ".join(sorted(self.class_traits(config=True)))
            raise ConfigError(
                f"The kernelspec's provisioner config has an unknown key: {', '.join(unknown)}. The keys are: {keys}."
            )
        self._renamed = ""  # the path of the notebook, since it was renamed
        try:
            super().__init__(**kwargs)
        except traitlets.TraitError as error:
            raise ConfigError(f"The kernelspec's provisioner config is not right: {error}") from None

    def make_request(
        self, key: bytes, signature_scheme: str, given: Mapping[str, str], arguments: Sequence[str], kernel_name: str
    ) -> KernelRequest:
        """Return what kernel to start, by the configuration and the kernelspec.

        Args:
            key: the key that the kernel and its clients sign messages with.
            signature_scheme: and how.
            given: variables that the caller set, as templates.
            arguments: words to add to the kernel's command line.
            kernel_name: the kernelspec's name.

        Raises:
            ConfigError: `location` is missing.
            LocationError: it is not a location.
        """
        if not self.location:
            raise ConfigError(
                "The kernelspec's provisioner config has no 'location' (metadata.kernel_provisioner.config.location), "
                "such as gpu:~/project."
            )
        return KernelRequest(
            location=Location.parse(self.location).expanded(),
            key=key,
            signature_scheme=signature_scheme,
            python=self.python,
            env={**given, **self.kernel_spec.env, **self.env},
            arguments=tuple(arguments),
            kernel_name=kernel_name,
            grace=self.grace,
            hold=self.hold,
            journal_cells=self.journal_cells,
            journal_bytes=self.journal_bytes,
            provide=self.provide,
            kernel=self.kernel or None,
            notebook=self._renamed or notebook_named(given.get("JPY_SESSION_NAME", "").replace("$$", "$")),
        )


def notebook_named(name: str) -> str:
    """Return the notebook that a session's name means; none where a server, told no name, has named its folder."""
    return "" if name.endswith("/") else name


def given_by_caller(env: dict[str, str] | None) -> dict[str, str]:
    """Return the variables that a caller of `start_kernel` set, such as `JPY_SESSION_NAME`.

    Callers pass a whole environment: this process's own with theirs added. Only what differs is theirs.
    """
    if env is None:
        return {}
    return {
        name: value.replace("$", "$$")  # it is a value, not a template
        for name, value in env.items()
        if os.environ.get(name) != value and name not in _MACHINE_BOUND
    }
