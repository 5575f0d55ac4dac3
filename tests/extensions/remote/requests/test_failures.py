"""What a store's error means, and that no secret gets out with it."""

from __future__ import annotations

import pytest

from shardwise.base.errors import MissingShardError
from shardwise.extensions.remote.requests.failures import (
    from_obstore,
    kind_of_status,
    library_error,
    s3_error_texts,
)
from shardwise.storage.client import AttemptError

BODY = (
    "<Error><Code>SignatureDoesNotMatch</Code><Message>It doesn&#39;t match.</Message>"
    "<AWSAccessKeyId>AKIDSECRET</AWSAccessKeyId><StringToSign>SECRET</StringToSign></Error>"
)


def test_of_a_servers_reply_only_its_code_and_message_are_told():
    text = (
        "Generic S3 error: Error performing GET https://b.host/k?X-Sig=SECRET in 3ms - Server "
        f"returned non-2xx status code: 403 Forbidden: {BODY}\n\nDebug source: SECRET"
    )
    failed = from_obstore(OSError(text))
    assert failed.kind == "denied"
    assert failed.cause == "HTTP 403 Forbidden: SignatureDoesNotMatch: It doesn't match."


def test_a_servers_message_can_not_steer_a_terminal_or_start_a_line_of_a_log():
    message = "a &lt;b&gt; &amp; c&#10;ERROR root: \x1b[31mred"
    assert s3_error_texts(f"<Code>No&#10;</Code><Message>{message}</Message>") == [
        "No",
        r"a <b> & c\nERROR root: \x1b[31mred",
    ]


def test_a_query_of_an_unknown_error_is_not_told():
    failed = from_obstore(OSError("Something about https://h/k?sig=SECRET failed\nDebug SECRET"))
    assert "SECRET" not in failed.cause
    assert failed.kind == "passing"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, "denied"), (403, "denied"), (404, "missing"), (412, "changed"), (416, "ended"),
        (400, "refused"), (405, "refused"), (408, "passing"), (429, "passing"), (500, "passing"),
        (503, "passing"),
    ],
)  # fmt: skip
def test_only_what_may_pass_is_tried_again(status, kind):
    assert kind_of_status(status) == kind
    text = f"Server returned non-2xx status code: {status} Name: "
    assert from_obstore(OSError(text)).kind == kind


@pytest.mark.parametrize(
    ("text", "cause", "kind"),
    [
        ("x\n ConnectionRefused", "connection refused", "passing"),
        ("x\n dns error: SECRET", "the host's name is not known", "passing"),
        ("x\n kind: UnexpectedEof", "cut short", "passing"),
        ("x\n source: TimedOut", "no answer in time", "passing"),
        ("http://169.254.169.254/latest\n kind: Connect", "no credentials", "passing"),
        # What no other attempt can mend is refused at once.
        (
            "error sending request\n kind: Connect, InvalidCertificate(UnknownIssuer) SECRET",
            "certificate is not trusted: give",
            "refused",
        ),
        ("Generic\n source: NotPartial", "ignores the Range header", "refused"),
        (
            'Could not parse path: Error parsing Path "a\nb": SECRET',
            "takes no such name",
            "refused",
        ),
        ("GET https://h/SECRET - HTTP error: error following redirect", "redirects", "refused"),
        ("HTTP error: Content-Length Header missing from response", "Content-Length", "refused"),
    ],
)
def test_failures_are_named_without_secrets(text, cause, kind):
    failed = from_obstore(OSError(text))
    assert cause in failed.cause
    assert "SECRET" not in failed.cause
    assert failed.kind == kind


def test_of_azures_message_the_first_line_is_told():
    body = "<Code>Gone</Code><Message>It is gone.\nRequestId:1\nTime:2</Message>"
    failed = from_obstore(OSError(f"Server returned non-2xx status code: 404 Not Found: {body}"))
    assert failed.cause == "HTTP 404 Not Found: Gone: It is gone."


@pytest.mark.parametrize(
    ("url", "has_hint"),
    [("s3://b/train", True), ("s3://b/train/", False), ("s3://b/train.tar", False)],
)
def test_a_name_that_may_be_a_directory_is_told_how_one_is_written(url, has_hint):
    error = library_error(AttemptError("HTTP 404", "missing"), url, verb="read")
    assert isinstance(error, MissingShardError)
    assert ("written with a slash at its end" in str(error)) == has_hint


def test_a_signed_url_that_is_refused_may_have_expired():
    failed = AttemptError("HTTP 403", "denied")
    said = str(library_error(failed, "https://h/a.tar?sig=SECRET", verb="read"))
    assert "may have expired" in said
    assert "SECRET" not in said
    assert "expired" not in str(library_error(failed, "s3://b/a?.tar", verb="read"))
