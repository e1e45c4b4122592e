"""Whether a model provider would take a request: rule by rule, each with what the provider says.

    for finding in provider_rules.check({"messages": […], "max_tokens": 100}, "anthropic"):
        print(finding)          # A50 at messages.1: `tool_use` ids were found without …

Strict, the default, is what every generation of the provider's models takes; not strict is what
the newest take. The rules know nothing of perdure's own repair and renderers, so that they can
judge them. Each rule has a request that passes and one that fails, in `SAMPLES`.
"""

from perdure.testing.provider_rules.checking import RULES, Finding, check
from perdure.testing.provider_rules.rule import Format, Rule
from perdure.testing.provider_rules.samples import SAMPLES, Sample

__all__ = ["RULES", "SAMPLES", "Finding", "Format", "Rule", "Sample", "check"]
