"""Run the command with `python -m stallwatch`."""

import sys

from stallwatch.cli import main

if __name__ == "__main__":
    sys.exit(main())
