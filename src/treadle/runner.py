"""`python -m treadle.runner`: the same as `treadle runner`."""

from __future__ import annotations

import sys

from treadle.cli import main

if __name__ == "__main__":
    main(["runner", *sys.argv[1:]])
