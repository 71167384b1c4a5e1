"""The contract carried out on an engine: writes through the kernel's services, reads through its read services.

One `Service` is made for each caller, with the access that the caller has: every call checks its scope here, whichever
interface it came through, and acts under the caller's name.
"""

from treadle.service.service import Service

__all__ = ["Service"]
