"""`RunnerService`; `python -m afl.runtime.runner` is `treadle runner`."""

from treadle.agents.service import *
