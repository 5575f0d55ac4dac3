"""What the tests of batch servers share."""

from tests.support.transports import transport  # noqa: F401 - a fixture
