"""Parts that formats of numbered records share: byte ranges, their fields, whole-shard zip."""
