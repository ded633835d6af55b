"""``zoo`` and ``python -m zoo``: the command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the console script."""
    try:
        from zoo.cli.main import main as run  # half a second, in which a user may change his mind
    except KeyboardInterrupt:
        print("zoo: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
