"""Packaging of lcrag; `pip install -e .[test]` is what launch/test.sh runs."""

from setuptools import find_packages, setup

# TensorFlow 2.21 breaks ScaNN's bindings (undefined absl symbols), hence the pin.
REQUIREMENTS = [
    "absl-py",
    "babel==2.18.*",
    "flax==0.12.8",
    "gin-config==0.5.0",
    "jax==0.10.2",
    "jaxtyping==0.3.*",
    "matplotlib",
    "numpy>=2,<3",
    "optax==0.2.8",
    "orbax-checkpoint==0.12.8",
    "py3langid==0.4.*",
    "pyarrow",
    "rich",
    "safetensors",
    "scann==1.4.2",
    "scipy",
    "seqio==0.0.20",
    "tensorflow-text==2.20.*",
    "tensorflow==2.20.*",
    "tokenizers",
    "transformers==5.23.*",
    "zhconv",
]

EXTRAS = {
    "test": ["beartype", "hypothesis", "mypy", "pytest", "pytest-xdist", "ruff", "torch==2.13.0"],
}

setup(
    name="lcrag",
    version="0.1.0",
    description="Teach language models to search, in any language: JAX/TPU-native reinforcement learning",
    python_requires=">=3.11",
    packages=find_packages(include=["lcrag", "lcrag.*"]),
    install_requires=REQUIREMENTS,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["lcrag = lcrag.main:run"]},
)
