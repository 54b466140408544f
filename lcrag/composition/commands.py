"""The commands as gin configurables; importing this module registers every function that gin files can name."""

import pathlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

import gin

import lcrag.atlas.collections  # noqa: F401  gin finds what is registered by its name
import lcrag.atlas.comprehension  # noqa: F401
import lcrag.atlas.independent_facts  # noqa: F401
import lcrag.composition.registry  # noqa: F401
import lcrag.curation.oracle_demonstrations  # noqa: F401
import lcrag.data.collections  # noqa: F401
import lcrag.data.constructed  # noqa: F401
import lcrag.data.domain_sets  # noqa: F401
import lcrag.data.english  # noqa: F401
import lcrag.data.jsonl_questions  # noqa: F401
import lcrag.data.multilingual  # noqa: F401
import lcrag.methods.globalrag.oracle  # noqa: F401
import lcrag.methods.globalrag.plans  # noqa: F401
import lcrag.methods.rag_r1.oracle  # noqa: F401
import lcrag.methods.translate_r1.oracles  # noqa: F401
import lcrag.methods.translate_r1.pipeline.models  # noqa: F401
import lcrag.retrieval.qdrant  # noqa: F401
import lcrag.retrieval.web  # noqa: F401
from lcrag.commands import curate as curating
from lcrag.commands.benchmark import benchmark as benchmark
from lcrag.commands.build import build as build
from lcrag.commands.compile import compile_programs as compile_programs
from lcrag.commands.describe import describe as describe
from lcrag.commands.evaluate import evaluate as evaluate_command
from lcrag.commands.export import export  # noqa: F401
from lcrag.commands.index import index as index
from lcrag.commands.report.reporting import report  # noqa: F401
from lcrag.commands.sample import sample as sample
from lcrag.commands.serve.search_tool import SearchTool
from lcrag.commands.serve.serving import search_tool
from lcrag.commands.serve.serving import serve as serve
from lcrag.composition.configuration import configure, missing_as_sentence, read_configuration
from lcrag.data.judgements import judged_questions
from lcrag.errors import UserError
from lcrag.files import is_remote
from lcrag.policy import DecoderConfig, RopeScaling
from lcrag.runs import check_folder
from lcrag.runs.folder import check_place
from lcrag.runs.remote import local_copy
from lcrag.train import rl
from lcrag.train import sft as fine_tuning


def _configurable(function: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
    return gin.external_configurable(function, name, module="lcrag.commands")


for _part in (DecoderConfig, RopeScaling):
    gin.register(_part, module="lcrag.commands")

_configurable(judged_questions, "question_judgements")


def without_words(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command that takes no words as one that may be given none."""
    return lambda output_dir, words=(): command(output_dir)


def _with_folder(
    name: str, command: Callable[..., None], may_change: Collection[str] | None = None
) -> Callable[..., None]:
    """Wraps a command: its output folder is checked before gin builds the command's arguments.

    Args:
      name: Name of the command.
      command: The function that implements it.
      may_change: Bindings that may differ when a run is continued; None: the output folder is not a run's folder.
    """

    def checked(output_dir: pathlib.Path | None, *words: Sequence[str]) -> None:
        if output_dir is None:
            raise UserError(f"lcrag {name} needs a folder for its results: --output_dir=FOLDER")
        if is_remote(output_dir):
            with local_copy(output_dir) as copy:
                checked(copy, *words)
            return
        if may_change is None:
            check_place(output_dir)
        else:
            check_folder(output_dir, name, gin.config_str(), may_change)
        command(output_dir, *words)

    return checked


evaluate = _with_folder("evaluate", without_words(evaluate_command))
sft = _with_folder("sft", without_words(fine_tuning.sft), fine_tuning.MAY_CHANGE)
train = _with_folder("train", without_words(rl.train), rl.MAY_CHANGE)
CURATIONS = {name: _with_folder(name, curating.KINDS[name], curating.MAY_CHANGE[name]) for name in curating.KINDS}


@gin.configurable(module="lcrag.commands")
def curate(output_dir: pathlib.Path | None, words: Sequence[str] = (), *, kind: str | None = None) -> None:
    """Makes one kind of training data; see `lcrag.commands.curate`."""
    curating.curate(output_dir, words, kinds=CURATIONS, kind=kind)


def open_search_tool(*gin_files: str, bindings: Sequence[str] = ()) -> SearchTool:
    """Returns the search tool that a configuration describes, and sets gin's configuration in this process.

    Args:
      gin_files: Values of `--gin_file=`.
      bindings: Bindings as after `--gin.`, such as `policy.folder = "exported"`.

    Raises:
      UserError: the configuration cannot be read, or describes no search tool.
    """
    gin.clear_config()
    configure(read_configuration(gin_files, bindings))
    with missing_as_sentence():
        return search_tool()
