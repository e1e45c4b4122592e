"""The model providers that can be named: what each needs, and the form in which it is spoken to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Format = Literal["anthropic", "openai-chat", "openai-responses"]


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider, with the name that pydantic-ai has for it.

    `keys` are the environment variables of which one must be set; none means that no key is needed.
    With a `format` the request's conversation and the answer are exactly as they are in the log.
    """

    name: str
    extra: str  # of holdfast, or of pydantic-ai-slim where holdfast has none
    library: str
    keys: tuple[str, ...] = ()
    format: Format | None = None
    also: str | None = None  # its name in pydantic-ai, where that is another
    home: str | None = None  # what its answers are recorded under, where that is another

    @property
    def inner(self) -> str:
        """What pydantic-ai calls it."""
        return self.also or self.name

    @property
    def recorded(self) -> str:
        """What the log calls it: two forms of one provider are one there."""
        return self.home or self.name

    @property
    def install(self) -> str:
        """The command that installs what it needs."""
        if self.extra in ("anthropic", "openai", "google"):
            return f"pip install 'holdfast[{self.extra}]'"
        return f"pip install 'pydantic-ai-slim[{self.extra}]'"


def _chat(name: str, *keys: str) -> Provider:
    """One of the many that speak OpenAI's chat completions."""
    return Provider(name, "openai", "openai", keys, "openai-chat")


_ALL: Final = (
    Provider("anthropic", "anthropic", "anthropic", ("ANTHROPIC_API_KEY",), "anthropic"),
    Provider("openai", "openai", "openai", ("OPENAI_API_KEY",), "openai-chat", also="openai-chat"),
    Provider(
        "openai-responses",
        "openai",
        "openai",
        ("OPENAI_API_KEY",),
        "openai-responses",
        home="openai",
    ),
    Provider("google", "google", "google.genai", ("GOOGLE_API_KEY", "GEMINI_API_KEY")),
    Provider("ollama", "openai", "openai", (), "openai-chat"),
    Provider("vllm", "openai", "openai", (), "openai-chat"),
    Provider("azure", "openai", "openai", ("AZURE_OPENAI_API_KEY",)),
    Provider("bedrock", "bedrock", "boto3"),
    Provider("cohere", "cohere", "cohere", ("CO_API_KEY",)),
    Provider("google-cloud", "google", "google.genai"),
    Provider("groq", "groq", "groq", ("GROQ_API_KEY",)),
    Provider("huggingface", "huggingface", "huggingface_hub", ("HF_TOKEN",)),
    Provider("mistral", "mistral", "mistralai", ("MISTRAL_API_KEY",)),
    Provider("xai", "xai", "xai_sdk", ("XAI_API_KEY",)),
    _chat("alibaba", "ALIBABA_API_KEY", "DASHSCOPE_API_KEY"),
    _chat("cerebras", "CEREBRAS_API_KEY"),
    _chat("deepseek", "DEEPSEEK_API_KEY"),
    _chat("fireworks", "FIREWORKS_API_KEY"),
    _chat("moonshotai", "MOONSHOTAI_API_KEY"),
    _chat("nebius", "NEBIUS_API_KEY"),
    _chat("openrouter", "OPENROUTER_API_KEY"),
    _chat("ovhcloud", "OVHCLOUD_API_KEY"),
    _chat("sambanova", "SAMBANOVA_API_KEY"),
    _chat("together", "TOGETHER_API_KEY"),
    _chat("vercel", "VERCEL_AI_GATEWAY_API_KEY", "VERCEL_OIDC_TOKEN"),
    _chat("zai", "ZAI_API_KEY"),
    *(Provider(name, "openai", "openai") for name in ("github", "heroku", "litellm", "meta")),
)
PROVIDERS: Final[Mapping[str, Provider]] = {one.name: one for one in _ALL}
