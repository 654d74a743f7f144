"""`python -m albedo_provisioner`: the same as `jupyter albedo`."""

import sys

if sys.argv[1:2] == ["run-kernel"]:
    from .kernels import first_heartbeats

    first_heartbeats.begin(sys.argv)

from .cli import main  # this takes its time

sys.exit(main())
