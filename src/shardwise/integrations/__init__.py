"""Adapters for frameworks that need more than the plain loader, one module per framework.

DDP, FSDP2, Lightning, Ray Train and DeepSpeed take `shardwise.DataLoader` as it is. The modules
here import their framework, torch and the loader; nothing imports them.
"""

from shardwise.base.torch_import import import_torch

import_torch()
