"""The model providers that can be named: library, keys, address and wire format of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Format = Literal["anthropic", "openai-chat", "openai-responses"]


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider.

    `keys` are environment variables, one of which must be set; without any, no key is needed.
    `address` is the environment variable that must have the URL; if empty, only `base_url` can.
    A provider with `stays` has a fixed URL. With a `format`, requests and responses are
    byte for byte as they are in the log.
    """

    name: str
    extra: str  # of perdure, or of pydantic-ai-slim if perdure has none
    library: str
    keys: tuple[str, ...] = ()
    address: str | None = None
    format: Format | None = None
    alias: str | None = None  # its name in pydantic-ai, if different
    recorded_as: str | None = None  # the name recorded with its responses, if different
    has_fixed_url: bool = False

    @property
    def pydantic_ai_name(self) -> str:
        """Return its name in pydantic-ai."""
        return self.alias or self.name

    @property
    def log_name(self) -> str:
        """Return its name in the log, which is the same for two formats of one provider."""
        return self.recorded_as or self.name

    @property
    def install_command(self) -> str:
        """Return the command that installs its library."""
        if self.extra in ("anthropic", "openai", "google"):
            return f"pip install 'perdure[{self.extra}]'"
        return f"pip install 'pydantic-ai-slim[{self.extra}]'"


def _chat_provider(name: str, *keys: str, has_fixed_url: bool = False) -> Provider:
    """Return a provider with OpenAI's chat completions as its format."""
    return Provider(
        name, "openai", "openai", keys, format="openai-chat", has_fixed_url=has_fixed_url
    )


_ALL: Final = (
    Provider("anthropic", "anthropic", "anthropic", ("ANTHROPIC_API_KEY",), format="anthropic"),
    Provider(
        "openai",
        "openai",
        "openai",
        ("OPENAI_API_KEY",),
        format="openai-chat",
        alias="openai-chat",
    ),
    Provider(
        "openai-responses",
        "openai",
        "openai",
        ("OPENAI_API_KEY",),
        format="openai-responses",
        recorded_as="openai",
    ),
    Provider("google", "google", "google.genai", ("GOOGLE_API_KEY", "GEMINI_API_KEY")),
    _chat_provider("ollama"),
    Provider("vllm", "openai", "openai", (), "VLLM_BASE_URL", "openai-chat"),
    Provider("azure", "openai", "openai", ("AZURE_OPENAI_API_KEY",), "AZURE_OPENAI_ENDPOINT"),
    Provider("bedrock", "bedrock", "boto3"),
    Provider("cohere", "cohere", "cohere", ("CO_API_KEY",)),
    Provider("google-cloud", "google", "google.genai"),
    Provider("groq", "groq", "groq", ("GROQ_API_KEY",)),
    Provider("huggingface", "huggingface", "huggingface_hub", ("HF_TOKEN",)),
    Provider("mistral", "mistral", "mistralai", ("MISTRAL_API_KEY",)),
    Provider("xai", "xai", "xai_sdk", ("XAI_API_KEY",)),
    _chat_provider("alibaba", "ALIBABA_API_KEY", "DASHSCOPE_API_KEY"),
    _chat_provider("cerebras", "CEREBRAS_API_KEY", has_fixed_url=True),
    _chat_provider("deepseek", "DEEPSEEK_API_KEY", has_fixed_url=True),
    _chat_provider("fireworks", "FIREWORKS_API_KEY", has_fixed_url=True),
    _chat_provider("moonshotai", "MOONSHOTAI_API_KEY"),
    _chat_provider("nebius", "NEBIUS_API_KEY", has_fixed_url=True),
    _chat_provider("openrouter", "OPENROUTER_API_KEY", has_fixed_url=True),
    _chat_provider("ovhcloud", "OVHCLOUD_API_KEY", has_fixed_url=True),
    _chat_provider("sambanova", "SAMBANOVA_API_KEY"),
    _chat_provider("together", "TOGETHER_API_KEY", has_fixed_url=True),
    _chat_provider("vercel", "VERCEL_AI_GATEWAY_API_KEY", "VERCEL_OIDC_TOKEN", has_fixed_url=True),
    _chat_provider("zai", "ZAI_API_KEY"),
    _chat_provider("heroku", "HEROKU_INFERENCE_KEY"),
    Provider("litellm", "openai", "openai", (), "", "openai-chat"),
    Provider(
        "meta", "openai", "openai", ("META_API_KEY",), format="openai-responses", has_fixed_url=True
    ),
)
RETIRED: Final[Mapping[str, str]] = {"github": "GitHub Models was switched off on 2026-07-30"}
PROVIDERS: Final[Mapping[str, Provider]] = {provider.name: provider for provider in _ALL}

# Providers by the prefixes of their model names.
_PREFIXES: Final = {
    "gpt-": "openai",
    "chatgpt-": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
    "claude-": "anthropic",
    "gemini-": "google",
}


def default_provider(model: str) -> str | None:
    """Return the provider of a bare model name such as `gpt-4o`; None if it is not obvious."""
    names = (name for prefix, name in _PREFIXES.items() if model.startswith(prefix))
    return next(names, None)
