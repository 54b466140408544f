"""`lcrag train`: reinforcement learning; `training.train` reads top to bottom, `rollouts` samples its episodes."""
