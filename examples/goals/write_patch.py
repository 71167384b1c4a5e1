"""A placeholder for a code generator: read the request from stdin and change `greeting.py` in the current folder."""

from __future__ import annotations

import sys
from pathlib import Path

wanted = sys.stdin.read()
file = Path("greeting.py")
if "name" in wanted:
    file.write_text(file.read_text().replace('return "Hello"', 'return f"Hello, {name}!"'))
    print("greeting.py now names the person")
else:
    print("nothing to do that this script knows of")
