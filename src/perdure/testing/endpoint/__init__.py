"""A model provider on loopback: it plays a script, and refuses what the real one would refuse.

    with fake_endpoint([{"text": "Hello"}]) as endpoint:
        anthropic.Anthropic(base_url=endpoint.url, api_key="any")        # or openai.OpenAI(…)

It speaks Anthropic's Messages, OpenAI's chat completions and OpenAI's Responses, streamed and not.
Turn *k* answers the request whose history has *k* answers, so a client that starts again changes
nothing. A request that breaks one of `provider_rules` is refused with the provider's own error,
and so is one that gives back an earlier answer otherwise than it was sent. Past the end of the
script it answers `done`. `python -m perdure.testing.endpoint SCRIPT` is the same as a process.
"""

from perdure.testing.endpoint.play import Asked
from perdure.testing.endpoint.script import Failure, Script, Turn
from perdure.testing.endpoint.server import Endpoint, fake_endpoint

__all__ = ["Asked", "Endpoint", "Failure", "Script", "Turn", "fake_endpoint"]
