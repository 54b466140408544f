"""Packaging of lcrag; `pip install -e .[test]` is what launch/test.sh runs."""

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

# Ranges, so that lcrag can be installed beside other JAX libraries. The tested versions are in constraints.txt.
REQUIREMENTS = [
    "absl-py",
    "babel>=2.18,<3",
    "beartype",
    "cachetools",
    "etils[epath]",
    "fastapi",
    "flax>=0.12,<0.13",
    # Reads the files of llama.cpp.
    "gguf>=0.19,<0.20",
    "gin-config>=0.5,<0.6",
    "httpx2>=2,<3",
    "huggingface_hub",
    "jax>=0.10,<0.11",
    "jaxtyping>=0.3,<0.4",
    "jinja2>=3.1",
    # Compares formulas of answers; its reader of LaTeX is latex2sympy2_extended, on sympy.
    "math-verify>=0.9,<0.10",
    "matplotlib",
    "numpy>=2,<3",
    "optax>=0.2.8,<0.3",
    "orbax-checkpoint>=0.12,<0.13",
    "py3langid>=0.4,<0.5",
    "pyarrow",
    "pydantic>=2,<3",
    # Unicode's scripts, line breaks and invisible characters.
    "regex",
    "rich",
    "sacrebleu>=2.6,<3",
    "safetensors",
    "scann>=1.4.2,<1.5",
    "scipy",
    "seqio>=0.0.20,<0.1",
    "tenacity",
    "tensorboard",
    # TensorFlow 2.21 breaks ScaNN's bindings (undefined absl symbols).
    "tensorflow-text>=2.20,<2.21",
    "tensorflow>=2.20,<2.21",
    "tokenizers",
    "transformers>=5.23,<6",
    # The service's time limits extend its HTTP/1.1 protocol.
    "uvicorn>=0.54,<0.55",
    "zhconv",
]

# gs:// of all paths; Orbax asks Google's own client whether a bucket has folders.
STORAGE = ("gcsfs", "google-cloud-storage")
EXTRAS = {
    "cpu": [],
    "cuda": ["jax[cuda12]", *STORAGE],
    # libtpu, which also compiles for TPUs that need not be there; its licence is that of Google Cloud.
    "tpu": ["jax[tpu]", *STORAGE],
    # Runs in Google Cloud Storage without an accelerator.
    "gcs": [*STORAGE],
    # Beam keeps protobuf at version 6; newer sentencepiece, which seqio brings, demands version 7 without saying so.
    "beam": ["apache-beam>=2.77,<3", "sentencepiece<0.2.3"],
    # The client of a distributed vector engine: lcrag.retrieval.qdrant.
    "qdrant": ["qdrant-client>=1,<2"],
    # The SDK of the protocol by which agents call the tool.
    "mcp": ["mcp>=2,<3"],
    # Trackers that get the metrics of a run: Trackers.names = ("tensorboard", "wandb").
    "wandb": ["wandb"],
    "test": [
        # Pydantic models of Harbor's trajectory format; Harbor itself needs Python 3.12.
        "atif==1.7.0",
        *STORAGE,
        "hypothesis",
        "mcp>=2,<3",
        "mypy",
        "networkx>=3,<4",
        "pytest",
        "pytest-xdist",
        "pytrec-eval-terrier",
        "qdrant-client>=1,<2",
        "requests",
        "ruff",
        # Exactly this version installs without CUDA.
        "torch==2.13.0",
    ],
}


class BuildWithConfigurations(build_py):
    """Puts gin/ into the package as lcrag/gin; an editable install finds it where it is."""

    def run(self):
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "lcrag" / "gin"
            shutil.copytree("gin", target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


setup(
    name="lcrag",
    version="0.1.0",
    description="Teach language models to search, in any language: JAX/TPU-native reinforcement learning",
    long_description=Path("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The lcrag authors",
    license="Apache-2.0",
    license_files=["LICENSE", "NOTICE", "lcrag/atlas/weights/LICENSE.unicode.txt", "lcrag/atlas/weights/LICENSES.md"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    keywords="jax flax reinforcement-learning retrieval-augmented-generation multilingual grpo search-agents",
    python_requires=">=3.11,<3.14",
    packages=find_packages(include=["lcrag", "lcrag.*"]),
    package_data={"lcrag": [f"**/*.{suffix}" for suffix in "html json md safetensors toml txt typed".split()]},
    cmdclass={"build_py": BuildWithConfigurations},
    install_requires=REQUIREMENTS,
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": ["lcrag = lcrag.main:run"],
    },
)
