"""`python -m shardwise` is the command `shardwise`."""

from __future__ import annotations

from shardwise.cli import main

if __name__ == "__main__":
    main()
