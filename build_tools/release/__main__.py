from __future__ import annotations

import argparse
import sys
from pathlib import Path

from build_tools.assets import ROOT
from build_tools.release import build, contents, matrix, sbom, schemas
from treadle.version import VERSION


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m build_tools.release", description="Build a release, or try the one in dist/.")
    parser.add_argument("command", choices=("files", "build", "check", "publishable"))
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="the folder of the distributions (default: dist)")
    parser.add_argument("--tag", default=f"v{VERSION}", help="for publishable: the tag to publish (default: v and the version)")
    arguments = parser.parse_args()
    dist: Path = arguments.dist
    problems: list[str] = []
    match arguments.command:
        case "files":
            schemas.check()
        case "build":
            sdist, wheel = build.build(dist)
            problems = contents.problems(sdist, wheel)
            if not problems:
                bom = sbom.write(wheel, dist)
                build.write_checksums(dist, [sdist, wheel, bom])
        case "publishable":
            problems = contents.unpublishable(arguments.tag)
        case _:
            problems = matrix.problems(build.wheel_of(dist))
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    return bool(problems)


sys.exit(main())
