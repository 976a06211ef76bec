"""The command line: `voce` and `python -m voce`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Runs the command line of this process and exits with its code."""
    from . import _native

    code = _native.main(["voce", *sys.argv[1:]])
    # Nothing is left to do for the interpreter, and threads of the program may still be busy: end as the program does.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
