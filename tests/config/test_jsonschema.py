"""The JSON schema agrees with what is accepted."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.config import AgentConfig, schema
from perdure.core.json_values import schema_problems


def test_the_whole_configuration_fits_the_schema() -> None:
    whole: dict[str, Any] = yaml.safe_load(
        Path(__file__).with_name("whole.yaml").read_text("utf-8").replace(" on:", " 'on':")
    )
    assert schema_problems(whole, schema()) == []


@pytest.mark.parametrize(
    "data",
    [
        {"agent": {}},
        {"agents": {"a": {}}},
        {"agents": {"a": {"llm": "x", "tools": [{"name": "x"}]}}},
        {"server": {"port": 70_000}},
        {"server": {"webhooks": [{"on": ["failed"]}]}},
    ],
)
def test_what_is_refused_does_not_fit_the_schema(data: dict[str, Any]) -> None:
    assert schema_problems(data, schema())


def test_a_variable_fits_where_a_number_is_wanted() -> None:
    assert schema_problems({"server": {"port": "${PORT}"}}, schema()) == []


def test_the_words_that_are_allowed_are_in_the_schema() -> None:
    agent = schema()["properties"]["agents"]["additionalProperties"]["properties"]
    mode = agent["task"]["properties"]["hitl"]["properties"]["mode"]
    assert mode["anyOf"][0] == {"enum": ["auto", "blocking", "async"]}


def test_each_key_is_in_the_schema_once_with_its_models() -> None:
    """The schema follows from the models, also where a value is written in several ways."""
    agent = schema()["properties"]["agents"]["additionalProperties"]
    assert set(agent["properties"]) == set(AgentConfig.model_fields)
    tools = agent["properties"]["tools"]["items"]["anyOf"]
    assert [tool.get("required") for tool in tools] == [None, ["use"], ["mcp"]]
    assert "$ref" not in str(schema())
