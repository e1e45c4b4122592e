"""Spans of the provider's own client: each request succeeds, whoever reads its stream."""

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from tests.support.models import KEY, look

from perdure import Agent, Runtime
from perdure.testing.endpoint import fake_endpoint
from perdure.testing.endpoint.samples import HARD, LAST


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    collected = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(collected))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield collected
    provider.shutdown()


async def test_a_client_that_traces_reports_no_error(spans: InMemorySpanExporter) -> None:
    with fake_endpoint(HARD["anthropic"]) as endpoint:
        provider = AnthropicProvider(api_key=KEY, base_url=endpoint.url)
        model = AnthropicModel("claude-sonnet-4-6", provider=provider)
        agent = Agent("a", model=model, tools=[look])
        async with provider, Runtime("memory:", agents=[agent]) as rt:
            result = await rt.session("s", agent=agent).run("go")
    assert result.output == LAST
    finished = spans.get_finished_spans()
    names = [span.instrumentation_scope.name for span in finished if span.instrumentation_scope]
    assert sum("anthropic" in name for name in names) == 4
    assert not [span for span in finished if span.status.status_code is StatusCode.ERROR]
