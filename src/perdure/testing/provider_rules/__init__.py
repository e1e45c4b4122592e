"""Rules of model providers about requests, each with the provider's own message.

    for violation in provider_rules.check({"messages": […], "max_tokens": 100}, "anthropic"):
        print(violation)          # A50 at messages.1: `tool_use` ids were found without …

Strict, the default, accepts what every generation of the provider's models accepts; not strict,
what the newest accept. The rules are independent of perdure's own repair and renderers, so that
they can judge them. `SAMPLES` has a request that passes and one that fails for each rule.
"""

from perdure.testing.provider_rules.checker import RULES, Violation, check
from perdure.testing.provider_rules.rule import Format, Rule
from perdure.testing.provider_rules.samples import SAMPLES, Sample

__all__ = ["RULES", "SAMPLES", "Format", "Rule", "Sample", "Violation", "check"]
