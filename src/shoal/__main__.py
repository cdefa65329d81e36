"""``python -m shoal``: the command line, where ``shoal`` is not on the path."""

import sys

from shoal.cli import main

sys.exit(main())
