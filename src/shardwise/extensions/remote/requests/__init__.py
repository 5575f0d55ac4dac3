"""One request that ends: retried, hedged, bounded in time."""
