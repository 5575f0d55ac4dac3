"""Sets that live: shards that come while a model trains, and samples that must go."""
