"""Files of tokens: Megatron's, raw ones, .npy and LitData's chunks, cut into blocks."""
