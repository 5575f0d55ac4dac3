"""What handlers do with an exception."""

from __future__ import annotations

import time

import pytest

from shardwise.compat.webdataset import handlers


@pytest.mark.parametrize(
    ("handler", "goes_on"),
    [(handlers.ignore_and_continue, True), (handlers.ignore_and_stop, False)],
)
@pytest.mark.filterwarnings("error")
def test_ignoring_says_nothing(handler, goes_on):
    assert handler(ValueError("lost")) is goes_on


@pytest.mark.parametrize(
    ("handler", "goes_on"),
    [(handlers.warn_and_continue, True), (handlers.warn_and_stop, False)],
)
def test_warning_says_what_and_does_not_sleep(handler, goes_on, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it sleeps"))
    with pytest.warns(UserWarning, match=r"ValueError\('lost'\)"):
        assert handler(ValueError("lost")) is goes_on


def test_reraising_raises_the_same_exception():
    error = ValueError("lost")
    with pytest.raises(ValueError) as caught:
        handlers.reraise_exception(error)
    assert caught.value is error
