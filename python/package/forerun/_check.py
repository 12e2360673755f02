"""Checks of arguments. Their errors name the argument."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping
from numbers import Real
from typing import Any


def wrong_type(name: str, value: object, expected: str) -> TypeError:
    """Return the exception of an argument that has another type than expected."""
    shown = repr(value)
    if len(shown) > 60:
        shown = shown[:60] + "..."
    return TypeError(f"`{name}` must be {expected}, not {type(value).__name__} ({shown})")


def integer(name: str, value: Any, least: int | None = None) -> int:
    """Return an integer, also if it is one of numpy or torch."""
    if isinstance(value, bool):
        raise wrong_type(name, value, "an integer")
    try:
        known = operator.index(value)
    except TypeError:
        raise wrong_type(name, value, "an integer") from None
    if least is not None and known < least:
        raise ValueError(f"`{name}` is {known}, but it must be at least {least}")
    return known


def optional_integer(name: str, value: Any, least: int | None = None) -> int | None:
    """Return an integer or None."""
    return None if value is None else integer(name, value, least)


def number(name: str, value: Any) -> float:
    """Return a real number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise wrong_type(name, value, "a number")
    return float(value)


def boolean(name: str, value: Any) -> bool:
    """Return a truth value."""
    if not isinstance(value, bool):
        raise wrong_type(name, value, "True or False")
    return value


def text(name: str, value: Any) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise wrong_type(name, value, "a text")
    return value


def optional_text(name: str, value: Any) -> str | None:
    """Return a text or None."""
    return None if value is None else text(name, value)


def items(name: str, value: Any, expected: str) -> list[Any]:
    """Return the items of a list, a tuple or an array. Texts, bytes and dictionaries are none of them."""
    if isinstance(value, (str, bytes, bytearray, memoryview, Mapping)):
        raise wrong_type(name, value, expected)
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, Iterable):
        raise wrong_type(name, value, expected)
    return list(value)


def texts(name: str, value: Any) -> list[str]:
    """Return a list of texts."""
    several = items(name, value, "a list of texts")
    return [text(f"{name}[{index}]", one) for index, one in enumerate(several)]


def tokens(name: str, value: Any) -> list[int]:
    """Return a list of tokens."""
    several = items(name, value, "a list of tokens")
    return [token(f"{name}[{index}]", one) for index, one in enumerate(several)]


def token(name: str, value: Any) -> int:
    """Return a token."""
    known = integer(name, value)
    if not 0 <= known < 2**32:
        raise ValueError(
            f"`{name}` is {known}, which is not a token: tokens are from 0 to {2**32 - 1}"
        )
    return known


def supported(owner: str, given: Iterable[str], unsupported: Collection[str]) -> None:
    """Refuse options that users of other libraries know, but that have no counterpart here."""
    for name in given:
        if name in unsupported:
            raise TypeError(f"{owner} does not support `{name}` of vLLM")
