"""Builds the parts of an experiment from gin's bindings.

Importing this package registers every configurable with gin.
"""

import lcrag.app.composition.atlas_comprehension  # noqa: F401  gin finds its functions by their names
import lcrag.app.composition.datasets  # noqa: F401
import lcrag.app.composition.domains  # noqa: F401
import lcrag.app.composition.english  # noqa: F401
import lcrag.app.composition.frozen_models  # noqa: F401
import lcrag.app.composition.globalrag  # noqa: F401
import lcrag.app.composition.registry  # noqa: F401
import lcrag.app.composition.translators  # noqa: F401
