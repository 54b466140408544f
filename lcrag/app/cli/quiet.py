"""Keeps libraries from writing log lines between a person and the answer."""

import logging
import os
import warnings

QUIET_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",  # TensorFlow's and XLA's C++ log
    "GRPC_VERBOSITY": "ERROR",
    "TOKENIZERS_PARALLELISM": "false",  # else a warning at every fork
}
QUIET_LOGGERS = ("absl", "jax", "orbax", "transformers", "tensorflow", "matplotlib")


def silence_libraries() -> None:
    """Sets what must be set before the libraries are imported; a variable that is set already is kept."""
    for name, value in QUIET_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)
