"""`python -m bench`: all benchmarks, one after the other; what they print goes into RESULTS.md by hand, with what it means."""

from bench import functions, killers, queue, workflows

if __name__ == "__main__":
    for benchmark in (queue, killers, workflows, functions):
        print(f"\n== {benchmark.__name__} ==")
        benchmark.main()
