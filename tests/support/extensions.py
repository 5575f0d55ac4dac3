"""Whether this package has its extensions: the tests of the core run without them, too."""

from importlib.util import find_spec

HAS_EXTENSIONS = find_spec("shardwise.extensions") is not None
