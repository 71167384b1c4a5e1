"""A setting whose variable is not set is read from the file that `<variable>_FILE` names."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.interfaces.cli.session import Common, make_session
from treadle.model.errors import InvalidInput
from treadle.settings import Settings, chosen_store, load_settings, read_alert_target, variable_of

TEXTS = {"store": "postgresql://ada:secret@db/work", "anthropic_api_key": "sk-1", "webhook_secret": "s", "http_port": "9"}


@pytest.mark.parametrize("name", TEXTS)
def test_a_setting_can_be_given_by_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    variable = variable_of(name)
    monkeypatch.delenv(variable, raising=False)
    file = tmp_path / "secret"
    file.write_text(f"{TEXTS[name]}\n")
    monkeypatch.setenv(f"{variable}_FILE", str(file))
    assert str(getattr(load_settings(), name)) == TEXTS[name]
    file.write_text(" \n")
    assert getattr(load_settings(), name) == getattr(Settings(), name), "an empty file is like an empty variable"
    file.unlink()
    with pytest.raises(InvalidInput, match=f"{variable}_FILE names .*No such file"):
        load_settings()
    monkeypatch.setenv(variable, TEXTS[name])
    assert str(getattr(load_settings(), name)) == TEXTS[name], "the variable itself wins"


def test_a_store_token_or_alert_target_by_file_counts_as_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, text in {"TREADLE_STORE": "memory://", "TREADLE_TOKEN": "tdl_1", "TREADLE_ALERT_ONCALL": "https://x.org"}.items():
        (tmp_path / name).write_text(text)
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(f"{name}_FILE", str(tmp_path / name))
    chosen = make_session(Common()).chosen
    assert (chosen.store, chosen.token, chosen_store()) == ("memory://", "tdl_1", "memory://")
    assert read_alert_target("TREADLE_ALERT_ONCALL") == "https://x.org"
