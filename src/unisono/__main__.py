"""python -m unisono, and the `unisono` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; ends the process with its exit code."""
    try:
        from unisono.cli.main import main
    except KeyboardInterrupt:  # importing takes long enough to be interrupted
        sys.exit(130)
    main()


if __name__ == "__main__":
    main()
