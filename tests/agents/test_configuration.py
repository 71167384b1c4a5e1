"""Agent settings from the environment: the poll interval and the concurrency."""

from __future__ import annotations

import pytest

from treadle.agents import AgentPollerConfig, RegistryRunnerConfig, RunnerConfig
from treadle.model.errors import InvalidInput
from treadle.settings import load_settings

CONFIGURATIONS = (AgentPollerConfig, RegistryRunnerConfig, RunnerConfig)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_the_environment_supplies_unset_configuration(configuration, monkeypatch):
    monkeypatch.setenv("AFL_POLL_INTERVAL_MS", "250")
    monkeypatch.setenv("AFL_MAX_CONCURRENT", "12")
    found = configuration()
    assert (found.poll_interval_ms, found.max_concurrent) == (250, 12)
    said = configuration(poll_interval_ms=100, max_concurrent=1)
    assert (said.poll_interval_ms, said.max_concurrent) == (100, 1)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_without_it_the_defaults_are_those_of_the_specification(configuration, monkeypatch):
    monkeypatch.setenv("AFL_POLL_INTERVAL_MS", "")
    monkeypatch.delenv("AFL_MAX_CONCURRENT", raising=False)
    found = configuration()
    assert (found.poll_interval_ms, found.max_concurrent) == (2000, 5)


@pytest.mark.parametrize("name", ["AFL_POLL_INTERVAL_MS", "AFL_MAX_CONCURRENT"])
@pytest.mark.parametrize("value", ["0", "-1", "2.5", "many", "1e9", "²"])
def test_an_invalid_value_is_an_error_that_names_the_variable(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInput, match=name):
        AgentPollerConfig()
    with pytest.raises(InvalidInput, match=name):
        load_settings()


def test_the_settings_have_them_too(monkeypatch):
    monkeypatch.setenv("AFL_POLL_INTERVAL_MS", "250")
    monkeypatch.setenv("AFL_MAX_CONCURRENT", "12")
    settings = load_settings()
    assert (settings.afl_poll_interval_ms, settings.afl_max_concurrent) == (250, 12)
