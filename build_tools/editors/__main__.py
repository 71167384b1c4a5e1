import sys

from build_tools.editors import ROOT, outdated, write
from build_tools.editors.extension import build

if "--check" in sys.argv:
    for path in (late := outdated()):
        sys.stderr.write(f"{path.relative_to(ROOT)} is out of date: run `python -m build_tools.editors`.\n")
    sys.exit(bool(late))
for path in write():
    sys.stdout.write(f"{path.relative_to(ROOT)} written\n")
if "--build" in sys.argv:
    sys.exit(not build())
