"""`python -m arx` is the command `arx`."""

import sys

from arx.cli import main

sys.exit(main())
