"""`lcrag train`: reinforcement learning; `training.train` reads top to bottom, `training.training_step` is one step."""
