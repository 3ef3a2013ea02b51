"""``python -m jupyter_hyperpod`` is ``jupyter hyperpod``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
