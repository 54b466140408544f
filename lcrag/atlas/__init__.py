"""The embedded world: facts about countries, currencies and languages from Unicode CLDR, in thirteen languages.

world = build_world(seed=0)
world.questions("held_out", languages=["fi"], hops=(1,))
world.passages("fi")

Further modules: `comprehension` questions, the rule-based players of `oracle`, and `tasks`, which registers seqio
tasks. `launch/atlas_weights.py` trains what ships with it.
"""

from lcrag.atlas.facts import COMPOSITIONS, RELATIONS, Fact, Relation
from lcrag.atlas.world import SPLITS, Chain, World, build_world
