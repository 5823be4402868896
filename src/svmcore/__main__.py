"""``python -m svmcore``: the command line, and build flags without its extra."""

import sys

from . import buildinfo
from .cli import main

if __name__ == "__main__":
    code = buildinfo.main(sys.argv[1:])  # --cflags, --ldflags
    sys.exit(main() if code is None else code)
