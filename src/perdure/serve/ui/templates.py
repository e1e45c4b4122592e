"""Templates of the pages: one environment that escapes everything, and its filters."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache, partial
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from perdure.core.log.codec import TYPES
from perdure.findings.texts import value_line
from perdure.runtime.diagnosis.calls import question_text
from perdure.runtime.diagnosis.outcomes import winner_outcome
from perdure.serve.ui.markdown import render_markdown
from perdure.serve.ui.spans import ago, clock, exact, left, short_number, span
from perdure.serve.ui.static_files import PREFIX, static_files


@dataclass(frozen=True, slots=True)
class PageContext:
    """Values that every page has."""

    root: str
    form_token: str
    values: Mapping[str, Any]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("perdure.serve.ui", "html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "ago": ago,
        "clock": clock,
        "exact": exact,
        "json": json_text,
        "left": left,
        "line": value_line,
        "sentence": sentence,
        "sentences": sentences,
        "markdown": render_markdown,
        "short": short_number,
        "span": span,
        "iso": _iso,
    }
    environment.globals |= {
        "event_types": " ".join(TYPES),
        "question_text": question_text,
        "winner_text": _winner_text,
    }
    environment.globals["icon_file"] = static_files()["icons.svg"].name
    environment.globals["css_file"] = static_files()["perdure.css"].name
    environment.globals["js_file"] = static_files()["perdure.js"].name
    return environment


def render(template: str, context: PageContext, **values: Any) -> str:
    """Return the HTML of a template."""
    static = f"{context.root}{PREFIX}"
    return (
        _environment()
        .get_template(template)
        .render(
            root=context.root,
            static=static,
            form_token=context.form_token,
            icon=partial(_icon, static),
            **{**_DEFAULTS, **context.values, **values},
        )
    )


@lru_cache(maxsize=1_000)
def _icon(static: str, name: str, classes: str = "") -> Markup:
    """Return an icon of the sprite."""
    file = static_files()["icons.svg"].name
    return Markup(
        '<svg class="icon {}" aria-hidden="true" focusable="false"><use href="{}{}#{}"></use></svg>'
    ).format(classes, static, file, name)


_DEFAULTS: Mapping[str, Any] = {"person": None, "role": None, "section": "", "count": None}


def json_text(value: Any) -> str:
    """Return a JSON value as indented text."""
    return json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False, default=str)


def sentence(text: str) -> str:
    """Return a message of an error as a sentence: `there is no session` begins it."""
    end = "" if text.endswith((".", "!", "?", ":", "…")) else "."
    return f"{text[:1].upper()}{text[1:]}{end}"


def sentences(text: str) -> str:
    """Return the lines of a finding as sentences."""
    return " ".join(sentence(item) for item in text.split("\n"))


def _winner_text(winner: Mapping[str, Any]) -> str:
    return winner_outcome(winner).text


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
