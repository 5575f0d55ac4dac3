"""The command `certify`: proof that each sample was trained once."""
