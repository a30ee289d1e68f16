"""`python -m nested_rl` is `nested-rl`."""

import sys

from nested_rl.cli import main

if __name__ == "__main__":
    sys.exit(main())
