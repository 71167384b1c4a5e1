"""The file that places namespaces on stores."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.directories import write_directory

from treadle.model.errors import InvalidInput, InvalidName
from treadle.settings import Directory, Settings, place_store, read_directory


def test_the_directory_names_the_stores_of_namespaces(tmp_path: Path):
    path = tmp_path / "directory.toml"
    directory = Directory({"red": "sqlite:///a.db", "team.blue": 'postgresql://u:p"\\@h/d'}, "sqlite:///rest.db")
    write_directory(path, directory.namespaces, directory.store)
    assert read_directory(path) == directory


def test_a_namespace_lives_where_it_is_listed_or_in_the_store_of_all_others(tmp_path: Path):
    path = tmp_path / "directory.toml"
    write_directory(path, {"red": "sqlite:///a.db"})
    assert place_store(Settings(directory=str(path), namespace="red", store="sqlite:///x.db")).store == "sqlite:///a.db"
    assert place_store(Settings(directory=str(path), namespace="blue", store="sqlite:///x.db")).store == "sqlite:///x.db"
    write_directory(path, {"red": "sqlite:///a.db"}, "sqlite:///rest.db")
    assert place_store(Settings(directory=str(path), namespace="blue", store="sqlite:///x.db")).store == "sqlite:///rest.db"


@pytest.mark.parametrize("text", ["[namespaces]\nred = 1", "stores = 1", "[namespaces", 'store = "here"', "namespaces = 3", "\x00"])
def test_a_file_that_is_not_a_directory_is_refused_with_its_path(tmp_path: Path, text: str):
    path = tmp_path / "directory.toml"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=r"directory\.toml"):
        read_directory(path)


def test_a_missing_file_and_a_wrong_name_are_refused(tmp_path: Path):
    with pytest.raises(InvalidInput, match="TREADLE_DIRECTORY"):
        read_directory(tmp_path / "missing.toml")
    (tmp_path / "directory.toml").write_text('[namespaces]\n"no name" = "sqlite:///a.db"\n')
    with pytest.raises(InvalidName):
        read_directory(tmp_path / "directory.toml")
