"""`python -m afl.runtime.runner`: the same as `treadle runner`."""

import runpy

runpy.run_module("treadle.runner", run_name="__main__")
