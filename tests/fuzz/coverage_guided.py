"""Coverage-guided fuzzing of one target, in a process of its own: Atheris (libFuzzer) keeps inputs that reach something new.

What reached more is in `FOLDER/corpus` afterwards, so that the next run begins there. What goes wrong is written to
`FOLDER/finds`, once for each sign, and it goes on. Run by `python -m tests.fuzz`.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

MEMORY = 3 << 30
"""Bytes of address space: what needs more raises MemoryError, which is a find."""


def bound_memory() -> None:
    """For the process of a target."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def main(name: str, folder: Path, seconds: int) -> None:
    """Never returns: libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["treadle", "cronsim"]):
        from tests.fuzz.harness import CORPUS, INPUT_TIMEOUT, LARGEST, Finds, corpus_of
        from tests.fuzz.strategies import WORDS
        from tests.fuzz.targets import TARGETS

        finds = Finds(name, TARGETS[name], folder / "finds")
        for seed in corpus_of(name):
            finds.play(seed.read_bytes())  # loads what is loaded late, while code is looked at and memory is not bounded
    grown = folder / "corpus"
    grown.mkdir(parents=True, exist_ok=True)
    words = folder / "words"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in WORDS[name] if word), "ascii")
    bound_memory()
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={min(LARGEST, 4096)}",
        f"-timeout={int(INPUT_TIMEOUT * 12)}",
        f"-rss_limit_mb={MEMORY >> 20}",
        f"-artifact_prefix={folder}/died-",
        f"-dict={words}",
        "-use_value_profile=1",
        "-print_final_stats=1",
        str(grown),
        str(CORPUS / name),
        *([str(CORPUS.parents[1] / "golden" / "lang")] if name == "afl" else []),
    ]
    atheris.Setup([sys.argv[0], *options], finds.play)
    atheris.Fuzz()


def _escaped(word: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word.encode("utf-8", "surrogatepass")[:60])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
