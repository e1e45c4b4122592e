"""Texts that a resolver takes for a host name."""

import pytest

from perdure.core.host_names import host_name_of

LABEL = "a" * 63


@pytest.mark.parametrize(
    "text, name",
    [
        ("localhost", "localhost"),
        ("OPS.Example.", "ops.example"),
        ("bücher.example", "xn--bcher-kva.example"),
        (f"{LABEL}.example", f"{LABEL}.example"),
        ("a_service-1", "a_service-1"),
    ],
)
def test_a_name_is_lower_case_ascii_without_its_last_dot(text: str, name: str) -> None:
    assert host_name_of(text) == name


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "a..b.example", ".example", "example..", f"{LABEL}a.example"),
        *(f"ü{LABEL}.example", "ü..example", f"{'a.' * 127}a", "a b", "a/b", "a@b", "a:1"),
    ],
)
def test_a_name_with_an_empty_or_too_long_label_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a host name|idna"):
        host_name_of(text)
