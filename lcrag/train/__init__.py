"""`lcrag train`: reinforcement learning. Start reading at `training.train`; `rollouts` samples its episodes."""
