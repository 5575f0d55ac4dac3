"""What formats of numbered records share: byte ranges, fields cut from them, whole-shard zip."""
