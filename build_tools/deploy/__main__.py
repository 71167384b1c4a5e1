"""`python -m build_tools.deploy`: write deploy/monitoring and, where Go and Sprig are installed, the rendered chart."""

import shutil
import sys

from build_tools.deploy import chart, monitoring

for path, text in monitoring.outdated().items():
    path.write_text(text, "utf-8")
    sys.stdout.write(f"{path.relative_to(monitoring.ROOT)} written\n")
if not chart.DIGEST.exists() or chart.DIGEST.read_text().strip() != chart.digest():
    if shutil.which("go") is None or not (chart.LIBRARIES / "src/github.com/Masterminds/sprig").is_dir():
        sys.exit("The chart has changed; rendering it needs: apt-get install golang-go golang-github-masterminds-sprig-dev")
    chart.write()
    sys.stdout.write(f"{chart.RENDERED.relative_to(chart.ROOT)} written\n")
