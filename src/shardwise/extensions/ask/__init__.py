"""Questions to a plan: which samples a step has, where a sample comes, which are left out."""
