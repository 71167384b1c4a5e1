"""`python -m bench`: all benchmarks, one after the other."""

from bench.queue import main

if __name__ == "__main__":
    main()
