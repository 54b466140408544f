"""Packaging of lcrag; `pip install -e .[test]` is what launch/test.sh runs."""

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

# TensorFlow 2.21 breaks ScaNN's bindings (undefined absl symbols), hence the pin.
REQUIREMENTS = [
    "absl-py",
    "babel==2.18.*",
    "beartype",
    "cachetools",
    "etils[epath]",
    "fastapi",
    "flax==0.12.8",
    # Reads the files of llama.cpp.
    "gguf==0.19.*",
    "gin-config==0.5.0",
    "httpx2==2.*",
    "huggingface_hub",
    "jax==0.10.2",
    "jaxtyping==0.3.*",
    "jinja2>=3.1",
    # Compares formulas of answers; its reader of LaTeX is latex2sympy2_extended, on sympy.
    "math-verify==0.9.*",
    "matplotlib",
    "mwparserfromhell==0.7.*",
    "numpy>=2,<3",
    "optax==0.2.8",
    "orbax-checkpoint==0.12.8",
    "py3langid==0.4.*",
    "pyarrow",
    "pydantic==2.*",
    # Unicode's scripts, line breaks and invisible characters.
    "regex",
    "rich",
    "sacrebleu==2.6.*",
    "safetensors",
    "scann==1.4.2",
    "scipy",
    "sentencepiece",
    "seqio==0.0.20",
    "tenacity",
    "tensorflow-text==2.20.*",
    "tensorflow==2.20.*",
    "tokenizers",
    "transformers==5.23.*",
    # The service's time limits extend its HTTP/1.1 protocol.
    "uvicorn==0.54.*",
    "zhconv",
]

EXTRAS = {
    # libtpu, which compiles for TPUs that need not be there; its licence is that of Google Cloud.
    "tpu": ["jax[tpu]==0.10.2"],
    # Runs in Google Cloud Storage: Orbax asks it whether a bucket has folders.
    "gcs": ["google-cloud-storage"],
    # Beam keeps protobuf at version 6; newer sentencepiece demands version 7 without saying so to pip.
    "beam": ["apache-beam==2.77.*", "sentencepiece<0.2.3"],
    # The client of endpoints that translate.
    "endpoint": ["openai==3.*"],
    # The client of a distributed vector engine: lcrag.retrieval.qdrant.
    "qdrant": ["qdrant-client==1.*"],
    # The SDK of the protocol by which agents call the tool.
    "mcp": ["mcp==2.*"],
    # Trackers that get the metrics of a run: Trackers.names = ("tensorboard", "wandb").
    "wandb": ["wandb"],
    "test": [
        # Pydantic models of Harbor's trajectory format; Harbor itself needs Python 3.12.
        "atif==1.7.0",
        "hypothesis",
        "mcp==2.*",
        "mypy",
        "networkx==3.*",
        "openai==3.*",
        "pytest",
        "pytest-xdist",
        "pytrec-eval-terrier",
        "qdrant-client==1.*",
        "requests",
        "ruff",
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
    python_requires=">=3.11",
    packages=find_packages(include=["lcrag", "lcrag.*"]),
    package_data={"lcrag": [f"**/*.{suffix}" for suffix in ("html", "json", "md", "safetensors", "txt")]},
    cmdclass={"build_py": BuildWithConfigurations},
    install_requires=REQUIREMENTS,
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": ["lcrag = lcrag.main:run"],
    },
)
