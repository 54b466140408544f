"""Translate-R1: Cost-Aware Translation Tool Use via Reinforcement Learning.

arXiv 2606.06835 (Jayarao et al.). Commands and results: `docs/methods/translate_r1.md`.

| in the paper | here |
|---|---|
| section 3.2, appendices J and L: the translation pipeline | `pipeline`, `texts` |
| section 4.3: cost-sensitive rewards (flat, OTC, group-relative, gated) | `cost_adjusted_rewards`, `costs.cost` |
| section 4.3, appendix G, equation 4: when the gate opens | `gate_firing_probability` |
| section 4.4: the rollout with the tool | `program.translate_r1`, `program.ToolUse` |
| appendix A: prompts | `program.domain_prompt`, `program.tool_prompt` |
| section 6, figure 6: reward and tool rate in training | `train.steps.tool_rates`, `tool_report.draw_tool_rates` |
| section 6.3, figure 1: Pareto shares | `tool_report.pareto_shares`, `tool_report.draw_pareto` |
| tables 3 to 5, figure 7: by domain, selectivity | `tool_report.tool_tables`, `draw_selectivity` |
| translation before a search (not in the paper) | `program.translate_and_search` |
| the atlas's players | `oracles.ComprehensionOracle`, `oracles.TranslatingSearcher` |

Domains, tiers and constructed languages, which other methods use too, are in `lcrag.data`; the domains' rewards are in
`lcrag.rewards.domains`.
"""

from lcrag.methods.translate_r1.costs import cost, cost_adjusted_rewards, gate_firing_probability
from lcrag.methods.translate_r1.program import translate_and_search, translate_r1
