"""``python -m mpnn`` is the program ``mpnn``."""

import sys

from mpnn.cli import main

sys.exit(main())
