"""Conversion of episodes to chat messages, the format of many tools for supervised fine-tuning.

{"messages": [{"role": "system", "content": ...}, {"role": "user", "content": ...},
              {"role": "assistant", "content": ...}, {"role": "user", "content": ...}, ...]}

The policy's texts have the role "assistant"; TRL learns only these with `assistant_only_loss=True`. As in OpenAI's
fine-tuning files, `"weight": 0` marks an assistant's message that is not learned. The environment's texts have the role
"user", because "tool" would require calls with ids, whereas searches here are part of the policy's text.
`lcrag.data.demonstrations` reads these rows.
"""

from collections.abc import Mapping
from typing import Any

KEPT = ("question_id", "dataset", "language", "answer", "rewards")


def messages_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the row of an episode or a demonstration to messages; completions outside the dialogue are omitted."""
    opening, *shown = row.get("opening") or [row["prompt"]]
    messages = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    messages += [{"role": "user", "content": text} for text in (opening, *shown)]
    for turn in row["turns"]:
        unlearned = {"weight": 0} if turn["by"] == "policy" and turn.get("learn") is False else {}
        role = "assistant" if turn["by"] == "policy" else "user"
        messages.append({"role": role, "content": turn["text"], **unlearned})
    return {"messages": messages} | {key: row[key] for key in KEPT if key in row}
