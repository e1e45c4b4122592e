"""Fake model provider on loopback: it plays a script and refuses what the provider would refuse.

    with fake_endpoint([{"text": "Hello"}]) as endpoint:
        anthropic.Anthropic(base_url=endpoint.url, api_key="any")        # or openai.OpenAI(…)

It speaks Anthropic's Messages, OpenAI's chat completions and OpenAI's Responses, streamed and not.
Turn *k* responds to the request whose history has *k* responses, so a client that starts again
changes nothing. A request that breaks one of `provider_rules` is refused with the provider's own
error, and so is a request that returns an earlier response changed. Past the end of the script it
responds `done`. `python -m perdure.testing.endpoint SCRIPT` is the same as a process.
"""

from perdure.testing.endpoint.exchange import ReceivedRequest, ScriptedResponse
from perdure.testing.endpoint.failures import ProviderError
from perdure.testing.endpoint.judge import RequestVerdict
from perdure.testing.endpoint.script import Failure, Script, Turn
from perdure.testing.endpoint.server import Endpoint, fake_endpoint

__all__ = [
    "Endpoint",
    "Failure",
    "ProviderError",
    "ReceivedRequest",
    "RequestVerdict",
    "Script",
    "ScriptedResponse",
    "Turn",
    "fake_endpoint",
]
