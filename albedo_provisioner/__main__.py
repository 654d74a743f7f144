"""`python -m albedo_provisioner`: the same as `jupyter albedo`."""

import sys

from .cli import main

sys.exit(main())
