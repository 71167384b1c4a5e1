"""The public import paths of the AFL reference implementation, so that its agents run unedited on Treadle.

Everything here is `treadle.agents` under other names; see docs/how-to/reference-agents.md. Internals are not provided.
"""

from afl.emitter import emit_dict as emit_dict
from afl.parser import parse as parse
