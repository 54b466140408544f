"""`lcrag train` and `lcrag sft`. Start reading at `rl.train`; `rollout` samples and scores its episodes."""
