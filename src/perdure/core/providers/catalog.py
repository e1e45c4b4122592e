"""The model providers that can be named: what each needs, and the form in which it is spoken to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Format = Literal["anthropic", "openai-chat", "openai-responses"]


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider, with the name that pydantic-ai has for it.

    `keys` are the environment variables of which one must be set; none means that no key is needed.
    `address` is the one that says where it is, where that must be; empty: only `base_url` can.
    One that `stays` is always at the same place.
    With a `format` the request's conversation and the answer are exactly as they are in the log.
    """

    name: str
    extra: str  # of perdure, or of pydantic-ai-slim where perdure has none
    library: str
    keys: tuple[str, ...] = ()
    address: str | None = None
    format: Format | None = None
    also: str | None = None  # its name in pydantic-ai, where that is another
    home: str | None = None  # what its answers are recorded under, where that is another
    stays: bool = False

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
            return f"pip install 'perdure[{self.extra}]'"
        return f"pip install 'pydantic-ai-slim[{self.extra}]'"


def _chat(name: str, *keys: str, stays: bool = False) -> Provider:
    """One of the many that speak OpenAI's chat completions."""
    return Provider(name, "openai", "openai", keys, format="openai-chat", stays=stays)


_ALL: Final = (
    Provider("anthropic", "anthropic", "anthropic", ("ANTHROPIC_API_KEY",), format="anthropic"),
    Provider(
        "openai",
        "openai",
        "openai",
        ("OPENAI_API_KEY",),
        format="openai-chat",
        also="openai-chat",
    ),
    Provider(
        "openai-responses",
        "openai",
        "openai",
        ("OPENAI_API_KEY",),
        format="openai-responses",
        home="openai",
    ),
    Provider("google", "google", "google.genai", ("GOOGLE_API_KEY", "GEMINI_API_KEY")),
    _chat("ollama"),
    Provider("vllm", "openai", "openai", (), "VLLM_BASE_URL", "openai-chat"),
    Provider("azure", "openai", "openai", ("AZURE_OPENAI_API_KEY",), "AZURE_OPENAI_ENDPOINT"),
    Provider("bedrock", "bedrock", "boto3"),
    Provider("cohere", "cohere", "cohere", ("CO_API_KEY",)),
    Provider("google-cloud", "google", "google.genai"),
    Provider("groq", "groq", "groq", ("GROQ_API_KEY",)),
    Provider("huggingface", "huggingface", "huggingface_hub", ("HF_TOKEN",)),
    Provider("mistral", "mistral", "mistralai", ("MISTRAL_API_KEY",)),
    Provider("xai", "xai", "xai_sdk", ("XAI_API_KEY",)),
    _chat("alibaba", "ALIBABA_API_KEY", "DASHSCOPE_API_KEY"),
    _chat("cerebras", "CEREBRAS_API_KEY", stays=True),
    _chat("deepseek", "DEEPSEEK_API_KEY", stays=True),
    _chat("fireworks", "FIREWORKS_API_KEY", stays=True),
    _chat("moonshotai", "MOONSHOTAI_API_KEY"),
    _chat("nebius", "NEBIUS_API_KEY", stays=True),
    _chat("openrouter", "OPENROUTER_API_KEY", stays=True),
    _chat("ovhcloud", "OVHCLOUD_API_KEY", stays=True),
    _chat("sambanova", "SAMBANOVA_API_KEY"),
    _chat("together", "TOGETHER_API_KEY", stays=True),
    _chat("vercel", "VERCEL_AI_GATEWAY_API_KEY", "VERCEL_OIDC_TOKEN", stays=True),
    _chat("zai", "ZAI_API_KEY"),
    _chat("heroku", "HEROKU_INFERENCE_KEY"),
    Provider("litellm", "openai", "openai", (), "", "openai-chat"),
    Provider("meta", "openai", "openai", ("META_API_KEY",), format="openai-responses", stays=True),
)
RETIRED: Final[Mapping[str, str]] = {"github": "GitHub Models was switched off on 2026-07-30"}
PROVIDERS: Final[Mapping[str, Provider]] = {one.name: one for one in _ALL}
