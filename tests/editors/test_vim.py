"""Vim's colours agree with the compiler about keywords, types, strings, comments and scripts."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from build_tools.editors import EDITORS
from tests.editors.corpus import TRICKY, classes
from tests.limits import BOUND

VIM = shutil.which("vim")
_SCRIPT = """
set nocompatible encoding=utf-8
let &runtimepath = $RUNTIME . ',' . $VIMRUNTIME
syntax on
runtime! syntax/afl.vim
let rows = []
for line in range(1, line('$'))
  let row = []
  for column in range(1, strchars(getline(line)))
    let name = ''
    for id in synstack(line, byteidx(getline(line), column - 1) + 1)
      let found = synIDattr(id, 'name')
      let name = found =~# '^aflScript' ? found : name =~# '^aflScript' ? name : found =~# '^afl' ? found : name
    endfor
    call add(row, name)
  endfor
  call add(rows, row)
endfor
call writefile([json_encode(rows)], $ROWS)
qall!
"""
CLASSES = {
    "aflDeclaration": "keyword",
    "aflControl": "keyword",
    "aflModifier": "keyword",
    "aflDirective": "keyword",
    "aflStatement": "keyword",
    "aflConstant": "constant",
    "aflType": "type",
    "aflString": "string",
    "aflEscape": "string",
    "aflComment": "comment",
    "aflDoc": "comment",
    "aflTag": "comment",
    "aflTodo": "comment",
    "aflNumber": "number",
    "aflInput": "input",
    "aflName": "name",
    "aflOperator": "operator",
    "aflScript": "code",
}


def _works() -> bool:
    if VIM is None:
        return False
    told = subprocess.run([VIM, "--version"], capture_output=True, text=True, check=False).stdout
    return "+syntax" in told and "+eval" in told


@pytest.mark.skipif(not _works(), reason="a Vim with +syntax and +eval is not installed")
def test_vim_agrees_with_the_compiler(tmp_path: Path) -> None:
    text = TRICKY.replace("\ufeff", " ")
    (tmp_path / "a.afl").write_text(text, encoding="utf-8")
    (tmp_path / "a.vim").write_text(_SCRIPT, encoding="utf-8")
    environment = {"RUNTIME": str(EDITORS / "vim"), "ROWS": str(tmp_path / "rows"), "HOME": str(tmp_path), "TERM": "dumb"}
    command = [VIM or "", "-u", "NONE", "-N", "-es", "-S", str(tmp_path / "a.vim"), str(tmp_path / "a.afl")]
    subprocess.run(command, env=environment, timeout=BOUND, check=False, stdin=subprocess.DEVNULL, capture_output=True)
    rows = json.loads((tmp_path / "rows").read_text(encoding="utf-8"))
    theirs = [CLASSES.get(group, "") for row in rows for group in [*row, ""]]
    ours = ["" if class_ == "punctuation" else class_ for class_ in classes(text)]
    wrong = [
        f"{at}: {text[max(0, at - 15) : at]}»{text[at : at + 12]}: {ours[at]}, not {theirs[at]}"
        for at in range(len(text))
        if ours[at] and ours[at] != theirs[at]
    ]
    assert wrong[:8] == []
