"""Languages, questions, batches of a step, seqio tasks; `atlas` is the embedded world. Only `tasks` imports TensorFlow."""
