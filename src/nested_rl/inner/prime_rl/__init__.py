"""Full-scale jobs: prime-rl runs with verifiers environments."""
