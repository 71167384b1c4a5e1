"""`python -m afl.runtime.runner`: the same as `treadle runner`."""

import sys

from treadle.interfaces.cli import main

main(["runner", *sys.argv[1:]])
