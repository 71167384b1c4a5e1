"""Exit with 0 if the server or the worker of this container is healthy: `GET /health` on ports 8787 and 9464."""

import sys
import urllib.error
import urllib.request

PORTS = (8787, 9464)


def healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=4) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(not any(map(healthy, PORTS)))
