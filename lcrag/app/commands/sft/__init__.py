"""`lcrag sft`: supervised fine-tuning."""
