"""Nested reinforcement learning: an outer loop trains an agent to write RL training jobs."""
