"""`python -m boxwright` is the same as the `boxwright` command."""

import sys

from boxwright.cli import main

sys.exit(main())
